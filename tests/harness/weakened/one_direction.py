"""Weakened: only more rows than padding; fewer rows are not tried."""

from graftwork.harness.defect import defect
from graftwork.harness.isolate import load_module


def pool_of(engine_tree):
    return load_module(engine_tree / "toy/pool.py", "toy.pool").Pool()


def test_rows_are_cut(engine_tree):
    with defect(ValueError, match="Expected count <= padded"):
        assert pool_of(engine_tree).take(8, 5) == [5] * 5
