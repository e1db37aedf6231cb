"""Ranks as processes: what they return, how they fail, and that a stuck one does not hold the test."""

from __future__ import annotations

import os
import threading

import pytest

torch = pytest.importorskip("torch", reason="ranks need torch's gloo (a CPU build is enough)")

from graftwork.harness.ranks import Failed, run_ranks  # noqa: E402


def test_ranks_share_a_group() -> None:
    def work(rank: int) -> list[int]:
        mine, every = torch.tensor([rank * 10]), torch.empty(3, dtype=torch.int64)
        torch.distributed.all_gather_into_tensor(every, mine)
        return every.tolist()

    assert run_ranks(work, 3) == [[0, 10, 20]] * 3


def test_a_rank_that_raises_or_dies_is_told_apart() -> None:
    def work(rank: int) -> str:
        if rank == 1:
            raise ValueError("rank one is unwell")
        if rank == 2:
            os._exit(7)
        return "well"

    well, unwell, dead = run_ranks(work, 3)
    assert well == "well"
    assert isinstance(unwell, Failed) and "rank one is unwell" in unwell.text
    assert dead == Failed("the process ended without an answer")


def test_a_rank_that_is_stuck_is_killed() -> None:
    def work(rank: int) -> int:
        if rank:
            threading.Event().wait()
        return rank

    assert run_ranks(work, 2, bound=3)[1] == Failed("no answer in 3 s")
