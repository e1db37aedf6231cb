"""Run a function as several ranks: forked processes with one gloo group, for patches whose defect is between ranks.

Only tests use it. Each rank is a fork, so that it has the test's objects and torch without loading them again. No port
is taken: the ranks meet in a file and talk over the loopback interface.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

BOUND = 120.0


@dataclass(frozen=True)
class Failed:
    """What became of a rank that returned nothing: the end of its traceback, or how it ended."""

    text: str


def run_ranks(work: Callable[[int], Any], size: int, *, bound: float = BOUND) -> list[Any]:
    """What ``work(rank)`` returned on each of *size* ranks, in order; `Failed` where it raised, died or hung.

    In *work* the default group of torch.distributed is a gloo group of all ranks. A rank that still runs *bound*
    seconds after the start is killed: give a healthy tree far more than it needs. Results must be picklable.
    """
    fork = multiprocessing.get_context("fork")
    joined = fork.Barrier(size)
    answers: list[Any] = [Failed(f"no answer in {bound:g} s") for _ in range(size)]
    with tempfile.TemporaryDirectory(prefix="graftwork-ranks-") as folder:
        waiting: dict[Connection, int] = {}
        ranks: list[BaseProcess] = []
        for rank in range(size):
            ours, theirs = fork.Pipe(duplex=False)
            arguments = (work, rank, size, Path(folder) / "store", joined, bound, theirs)
            ranks.append(fork.Process(target=_rank, args=arguments))
            ranks[-1].start()
            theirs.close()
            waiting[ours] = rank
        try:
            _collect(waiting, answers, time.monotonic() + bound)
        finally:
            for process in ranks:
                process.kill()
                process.join()
            for pipe in waiting:
                pipe.close()
    return answers


def _collect(waiting: dict[Connection, int], answers: list[Any], deadline: float) -> None:
    pending = dict(waiting)
    while pending and (left := deadline - time.monotonic()) > 0:
        for pipe in wait(list(pending), timeout=left):
            assert isinstance(pipe, Connection)
            rank = pending.pop(pipe)
            try:
                answers[rank] = pipe.recv()
            except EOFError:
                answers[rank] = Failed("the process ended without an answer")


def _rank(
    work: Callable[[int], Any], rank: int, size: int, store: Path, joined: Barrier, bound: float, answer: Connection
) -> None:
    """The body of one rank. It leaves by ``os._exit``: a thread that is stuck in a collective must not hold it.

    Work begins when all have joined the group: one that leaves before that would fail the joining of the others. The
    parent ends everything at *bound*, so nothing here gives up earlier. A rank that failed leaves at once, which wakes
    the peers that wait for it. One that is done stays until all have answered and it is killed: its sockets may still
    hold what a peer has to read.
    """
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        later = bound + 60
        dist.init_process_group(
            "gloo", init_method=store.as_uri(), rank=rank, world_size=size, timeout=timedelta(seconds=later)
        )
        joined.wait(later)
        answer.send(work(rank))
        threading.Event().wait(later)
    except BaseException:
        answer.send(Failed("".join(traceback.format_exc().splitlines(keepends=True)[-6:])))
    os._exit(0)
