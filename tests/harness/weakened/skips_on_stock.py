"""Weakened: skipped just where it should fail."""

import pytest

from graftwork.harness.isolate import load_module


def pool_of(engine_tree):
    return load_module(engine_tree / "toy/pool.py", "toy.pool").Pool()


def test_count(engine_tree):
    pool = pool_of(engine_tree)
    if "_toy_clip" not in pool.take.__code__.co_varnames:
        pytest.skip("this tree is not patched")
    assert pool.take(8, 5) == [5] * 5
