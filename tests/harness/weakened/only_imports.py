"""Weakened: loads the file and calls it a day."""

from graftwork.harness.isolate import load_module


def pool_of(engine_tree):
    return load_module(engine_tree / "toy/pool.py", "toy.pool").Pool()


def test_it_loads(engine_tree):
    assert pool_of(engine_tree)
