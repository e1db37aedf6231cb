"""Weakened: any error of the engine would do, the defect is not named."""

from graftwork.harness.isolate import load_module


def pool_of(engine_tree):
    return load_module(engine_tree / "toy/pool.py", "toy.pool").Pool()


def test_count(engine_tree):
    assert pool_of(engine_tree).take(8, 5) == [5] * 5
