"""Weakened: fails on stock code because the test uses a name that only the patch brings."""

from graftwork.harness.isolate import load_module


def pool_of(engine_tree):
    return load_module(engine_tree / "toy/pool.py", "toy.pool").Pool()


def test_clip_comes_last(engine_tree):
    names = pool_of(engine_tree).take.__code__.co_varnames
    assert names[names.index("_toy_clip")] == "_toy_clip"
