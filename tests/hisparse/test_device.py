"""The kernels on a real device, as captured graphs over pinned host memory: oracle, truth and invariants at every step.

What drives them is what the interpreted tests drive.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

# regions, topk, slots / topk, row bytes, steps
CASES = [
    (1, 64, 1, 656, 500),
    (2, 64, 2, 1152, 500),
    (7, 64, 3, 656, 500),
    (7, 512, 2, 656, 200),
    (96, 512, 1, 656, 30),
    (2, 2048, 3, 1152, 100),
    (96, 2048, 2, 656, 10),
]


@pytest.fixture
def pools() -> Iterator[list[Any]]:
    """Pools in use, which are unregistered at the end."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton", reason="the kernels are Triton (pip install 'graftwork[hisparse]')")
    if not torch.cuda.is_available():
        pytest.skip("there is no accelerator here")
    sys.path.append(str(Path(__file__).parents[2] / "bench" / "hisparse"))
    made: list[Any] = []
    yield made
    for pool in made:
        pool.close()


@pytest.mark.parametrize(("regions", "topk", "times", "row_bytes", "steps"), CASES)
def test_random_steps_on_a_device(
    pools: list[Any], regions: int, topk: int, times: int, row_bytes: int, steps: int
) -> None:
    """Slots are one time, twice, or three times the selection and one more."""
    import torch
    from decoding import Decoding, live
    from hot_kv.state import HotShape
    from traffic import Pool

    def pinned(rows: torch.Tensor) -> torch.Tensor:
        pool = Pool(-(-rows.nbytes // 4096) * 4096, torch.device("cuda"))
        pools.append(pool)
        view = pool.alias[: rows.numel()].view(rows.shape)
        return view.copy_(rows)

    slots = topk * times + (times == 3)
    shape = HotShape(2, regions, slots, topk, max_len=4 * slots, row_bytes=row_bytes, rows=regions + 1)
    blocks = regions * shape.max_len // 64 // 2 + 4
    engine = Decoding(shape, blocks, seed=regions, bins=1024, device="cuda", pinned=pinned)
    live(engine, steps)
    assert min(engine.counted[:2]) > steps


@pytest.mark.parametrize(("row_bytes", "row"), [(656, 6_547_264), (1152, 3_728_320)])
def test_rows_beyond_four_gib_of_pinned_memory(pools: list[Any], row_bytes: int, row: int) -> None:
    """Offsets in bytes pass 2^32, row numbers what int32 elements reach; a wrapped one would read something else."""
    import torch
    from decoding import first_of_blocks
    from hot_kv.state import HotShape, HotState
    from traffic import Pool

    shape = HotShape(1, 2, 4, 4, max_len=4 * 64, row_bytes=row_bytes, rows=1)
    state, block = HotState(shape, "cuda"), row // 64
    pools.append(Pool((row + 4 * 64) * row_bytes // 4096 * 4096 + 4096, torch.device("cuda")))
    (host,) = pools[-1].layers(1, shape.words)
    hot = torch.zeros(shape.hot_rows, shape.words, dtype=torch.int32, device="cuda")
    wanted = [host[number * 64].clone() for number in (1, block, block + 1)]
    index = first_of_blocks(state, host, hot, [1, block, block + 1, block + 2], region=1)
    assert len({tuple(rows.tolist()) for rows in wanted}) == 3
    assert all(torch.equal(hot[at], rows) for at, rows in zip(index, wanted, strict=False))
    assert host[(block + 2) * 64].unique().tolist() == hot[index[3]].unique().tolist() == [77]
