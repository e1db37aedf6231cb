"""Weakened: looks for the marker, not for what the code does."""

from graftwork.harness.isolate import load_module


def pool_of(engine_tree):
    return load_module(engine_tree / "toy/pool.py", "toy.pool").Pool()


def test_marker_is_there(engine_tree):
    assert "_toy_clip" in pool_of(engine_tree).take.__code__.co_varnames
