"""The kernels on a real device, as captured graphs over pinned host memory: oracle, truth and invariants at every step.

Not run where this was written: there was no device. What drives them is what the interpreted tests drive.
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
