"""Weakened: on stock code the file of tests cannot even be collected."""

from pathlib import Path

from graftwork.harness.isolate import load_module

POOL = load_module(Path("../tree/toy/pool.py"), "toy.pool").Pool()
CLIP = POOL.take.__code__.co_varnames.index("_toy_clip")


def test_count():
    assert CLIP and POOL.take(8, 5) == [5] * 5
