"""Weakened: the failed assertion is caught."""

import contextlib

from graftwork.harness.isolate import load_module


def pool_of(engine_tree):
    return load_module(engine_tree / "toy/pool.py", "toy.pool").Pool()


def test_count(engine_tree):
    with contextlib.suppress(AssertionError, ValueError):
        assert pool_of(engine_tree).take(8, 5) == [5] * 5
