"""Weakened: waits for another error than the defect's."""

from graftwork.harness.defect import defect
from graftwork.harness.isolate import load_module


def pool_of(engine_tree):
    return load_module(engine_tree / "toy/pool.py", "toy.pool").Pool()


def test_count(engine_tree):
    with defect(ValueError, match="negative dimensions"):
        out = pool_of(engine_tree).take(8, 5)
    assert out == [5] * 5
