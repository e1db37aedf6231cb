"""Weakened: always skipped."""

import pytest


@pytest.mark.skip(reason="not today")
def test_count(engine_tree):
    raise AssertionError
