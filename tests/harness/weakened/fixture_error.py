"""Weakened: on stock code the fixture fails, not the test."""

import pytest

from graftwork.harness.isolate import load_module


def pool_of(engine_tree):
    return load_module(engine_tree / "toy/pool.py", "toy.pool").Pool()


@pytest.fixture
def pool(engine_tree):
    pool = pool_of(engine_tree)
    assert "_toy_clip" in pool.take.__code__.co_varnames
    return pool


def test_count(pool):
    assert pool.take(8, 5) == [5] * 5
