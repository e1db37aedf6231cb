"""Random decode steps on the real kernels, interpreted, against the oracle and the truth, with all that requests do."""

from __future__ import annotations

import pytest
from decoding import Decoding, live
from hot_kv.kernels_launch import Tuning
from hot_kv.state import HotShape

STEPS = 40
# layers, regions, slots, topk, row bytes, page, tuning
CASES = {
    "no slack": (1, 3, 8, 8, 656, 16, Tuning(copy_programs=1, copy_rows=1, few=0)),
    "twice": (2, 4, 16, 8, 1152, 16, Tuning(copy_programs=3, copy_rows=4, few=6)),
    "odd sizes, wave of 64": (1, 3, 22, 7, 656, 16, Tuning(wave=64, copy_programs=2, copy_rows=8, few=0)),
    "one request at a time": (2, 1, 10, 5, 1152, 16, Tuning(copy_programs=2, copy_rows=2)),
    "pages of four": (1, 4, 24, 12, 656, 4, Tuning(copy_programs=2, copy_rows=4)),
}


@pytest.mark.parametrize("name", CASES)
def test_hundreds_of_random_steps(name: str) -> None:
    layers, regions, slots, topk, row_bytes, page, tuning = CASES[name]
    shape = HotShape(layers, regions, slots, topk, max_len=96, row_bytes=row_bytes, rows=regions + 1, page=page)
    engine = Decoding(shape, blocks=regions * 96 // page // 2 + 4, seed=len(name), tuning=tuning)
    live(engine, STEPS)
    hits, misses, refused = engine.counted
    assert min(hits, misses) > STEPS
    assert refused == 0


@pytest.mark.parametrize(("slots", "row_bytes"), [(4096, 656), (6145, 1152)])
def test_a_few_steps_at_full_size(slots: int, row_bytes: int) -> None:
    """Selections of 2,048 positions; hot rows twice as many, or three times and one more, as in a model."""
    shape = HotShape(1, 2, slots, 2048, max_len=12_288, row_bytes=row_bytes, rows=2)
    engine = Decoding(shape, blocks=2 * 12_288 // 64 + 1, seed=slots, bins=1024)
    batch = [engine.add(tokens) for tokens in (9_000, 3_000)]
    for _ in range(3):
        engine.step(batch)
    assert engine.counted[0] > 2048
    assert engine.counted[1] > 2 * 2048
