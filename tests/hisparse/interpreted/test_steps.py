"""Random decode steps on the real kernels, interpreted, against the oracle and the truth, with all that requests do."""

from __future__ import annotations

import pytest
from decoding import Decoding
from hot_kv.kernels_launch import Tuning
from hot_kv.state import HotShape

STEPS = 50
# layers, regions, slots, topk, row bytes, page, tuning
CASES = {
    "no slack": (1, 3, 8, 8, 656, 16, Tuning(copy_programs=1, copy_rows=1)),
    "twice": (2, 4, 16, 8, 1152, 16, Tuning(copy_programs=3, copy_rows=4)),
    "odd sizes, wave of 64": (1, 3, 22, 7, 656, 16, Tuning(wave=64, copy_programs=2, copy_rows=8)),
    "one request at a time": (2, 1, 10, 5, 1152, 16, Tuning(copy_programs=2, copy_rows=2)),
    "pages of four": (1, 4, 24, 12, 656, 4, Tuning(copy_programs=2, copy_rows=4)),
}


@pytest.mark.parametrize("name", CASES)
def test_hundreds_of_random_steps(name: str) -> None:
    """Finish, preempt and resume, abort and add again under one name, reorder, pause, restart; blocks are recycled."""
    layers, regions, slots, topk, row_bytes, page, tuning = CASES[name]
    shape = HotShape(layers, regions, slots, topk, max_len=96, row_bytes=row_bytes, rows=regions + 1, page=page)
    engine = Decoding(shape, blocks=regions * 96 // page // 2 + 4, seed=len(name), tuning=tuning)
    chance = engine.chance
    for number in range(STEPS):
        running = list(engine.requests.values())
        if len(running) < regions or chance.random() < 0.1:
            engine.add(chance.choice([1, topk, slots, slots + 1, 40]))
        if running and chance.random() < 0.12:
            engine.finish(chance.choice(running).name)
        if engine.requests and chance.random() < 0.12:  # preempted, then resumed, or aborted and added again
            name_again = chance.choice(list(engine.requests))
            tokens = engine.requests[name_again].tokens
            engine.finish(name_again)
            engine.add(chance.randint(1, tokens), name_again)
        if engine.requests and chance.random() < 0.08:  # a load failed: computed again from earlier on
            restart(engine)
        batch = list(engine.requests.values())
        chance.shuffle(batch)
        engine.step(batch[: chance.randint(0 if number % 9 == 0 else 1, regions)])
    hits, misses, refused = engine.counted
    assert min(hits, misses) > STEPS
    assert refused == 0


def restart(engine: Decoding) -> None:
    """Tokens from some position on get other rows, and the region is not told but through the computed tokens."""
    request = engine.chance.choice(list(engine.requests.values()))
    if request.tokens < 3:
        return
    kept = engine.chance.randint(1, request.tokens - 2)
    blocks = engine.blocks_for(kept)
    engine.free += request.blocks[blocks:]
    del request.blocks[blocks:]
    request.truth = request.truth[:, :kept]
    request.recent = [pos for pos in request.recent if pos < kept]
