"""What the launchers refuse before anything runs, and the sizes that they derive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hot_kv.kernels_launch import Tuning, bin_shift, copy, resolve, tuning_for, write_newest
from hot_kv.state import HotShape, HotState

SHAPE = HotShape(layers=1, regions=2, slots=8, topk=4, max_len=64, row_bytes=656, rows=3)


@pytest.fixture
def given() -> dict[str, Any]:
    rows = SHAPE.rows
    return {
        "state": HotState(SHAPE, "cpu"),
        "layer": 0,
        "topk": torch.full((rows, 4), -1, dtype=torch.int32),
        "seq_lens": torch.ones(rows, dtype=torch.int32),
        "slots": torch.full((rows,), -1, dtype=torch.int64),
        "regions": torch.zeros(rows, dtype=torch.int32),
        "table": torch.zeros(rows, 1, dtype=torch.int32),
        "host_rows": 64,
        "tuning": Tuning(),
    }


def wider(given: dict[str, Any]) -> None:
    given["topk"] = torch.full((4, 4), -1, dtype=torch.int32)


def other_topk(given: dict[str, Any]) -> None:
    given["topk"] = torch.full((3, 5), -1, dtype=torch.int32)


def wide_positions(given: dict[str, Any]) -> None:
    given["topk"] = given["topk"].to(torch.int64)


def narrow_slots(given: dict[str, Any]) -> None:
    given["slots"] = given["slots"].to(torch.int32)


def fewer_slots(given: dict[str, Any]) -> None:
    """Padded by data parallelism while the slots are not."""
    given["slots"] = given["slots"][:2]


def transposed(given: dict[str, Any]) -> None:
    given["table"] = torch.zeros(2, 3, dtype=torch.int32).t()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (wider, "wanted 1 to 3 rows of 4"),
        (other_topk, "wanted 1 to 3 rows of 4"),
        (wide_positions, "topk is torch.int64"),
        (narrow_slots, "slots is torch.int32"),
        (fewer_slots, "slots has 2 rows, the batch 3"),
        (transposed, "table must be contiguous"),
    ],
)
def test_batches_that_do_not_fit_are_refused(
    given: dict[str, Any], spoil: Callable[[dict[str, Any]], None], message: str
) -> None:
    resolve(**given)
    spoil(given)
    with pytest.raises(ValueError, match=message):
        resolve(**given)


def test_rows_that_do_not_fit_are_refused(given: dict[str, Any]) -> None:
    state, tuning = given["state"], Tuning()
    host = torch.zeros(64, 164, dtype=torch.int32)
    hot = torch.zeros(SHAPE.hot_rows, 164, dtype=torch.int32)
    for wrong in (hot[:-1], hot.to(torch.int64), hot[:, :160], hot.t()):
        with pytest.raises(ValueError, match="rows"):
            copy(state, host, wrong, tuning)
    with pytest.raises(ValueError, match="wanted contiguous"):
        copy(state, host.view(-1, 82), hot, tuning)
    with pytest.raises(ValueError, match="2 rows, 3 slots"):
        write_newest(state, host[:2], given["slots"], given["regions"], host, hot, tuning)


@pytest.mark.parametrize("rows", [1, 63, 64, 1023, 1024, 1025, 3_273_603, 2**31])
@pytest.mark.parametrize("bins", [1, 8, 1024])
def test_every_host_row_has_a_bin_and_most_bins_are_used(rows: int, bins: int) -> None:
    shift = bin_shift(rows, bins)
    assert (rows - 1) >> shift < bins
    assert shift == 0 or (rows - 1) >> shift >= bins // 2


@pytest.mark.parametrize("wave", [32, 64])
def test_programs_have_as_many_threads_whatever_the_wave(wave: int) -> None:
    tuning = Tuning(wave=wave)
    assert tuning.warps(tuning.resolve_threads) * wave == 256
    assert tuning.warps(16) == 1


def test_without_a_device_there_are_defaults() -> None:
    assert tuning_for(torch.device("cpu")).wave == 32
