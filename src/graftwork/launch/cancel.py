"""Ending a Slurm job in two steps: its batch script is told and drains the nodes; then, if need be, ``scancel``."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from graftwork.errors import PolicyError, UnreachableError, UsageError

COMMENT = "graftwork:drain_s="
SLACK_S = 60  # beyond the drain: to notice the signal, to write the last lines, Slurm's epilog
_JOB = re.compile(r"[1-9]\d*(_\d+|\+\d+)?")
_UNKNOWN = "Invalid job id"
_ENDED = frozenset({"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"})
_ENDED |= frozenset({"PREEMPTED", "REVOKED", "TIMEOUT"})
_NOT_STARTED = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
_TOO_LATE = "already completing or completed"


@dataclass(frozen=True)
class Ended:
    """How a job ended: before it ran or drained, in which state (Slurm's, "" if it forgot), after how many seconds."""

    job: str
    how: Literal["pending", "drained"]
    state: str
    seconds: float


def cancel(
    job: str, bound_s: int | None = None, *, say: Callable[[str], None] = lambda _: None, every_s: float = 2
) -> Ended:
    """End *job* of ``graftwork launch --slurm`` and wait until it has ended.

    A job that waits for nodes is removed at once. Of one that runs, the batch script gets SIGTERM and drains; after
    *bound_s* (default: what the job says, and some slack) plain ``scancel`` ends what is left, and PolicyError says so.
    UsageError for a job that is unknown, has ended, or was not written by graftwork; UnreachableError without Slurm's
    controller.
    """
    if not _JOB.fullmatch(job):
        raise UsageError(f"not the number of a Slurm job: {job!r}", hint="squeue --me lists yours")
    begin = time.monotonic()
    state, comment = _look(job)
    if state in _ENDED or not state:
        what = f"job {job} has ended already: {state}" if state else f"Slurm knows no job {job}, or not any more"
        raise UsageError(what, hint="squeue --me lists yours")
    if state in _NOT_STARTED:
        # It may start meanwhile: then it must drain, so only a job that still waits is removed.
        _run("scancel", *(["--state=PENDING"] if state == "PENDING" else []), job)
        state, comment = _look(job)
        if state in _ENDED or not state:
            return Ended(job, "pending", state, time.monotonic() - begin)
    if state == "SUSPENDED":
        raise UsageError(f"job {job} is suspended and cannot drain", hint=f"resume it first: scontrol resume {job}")
    bound = bound_s if bound_s is not None else _bound(job, comment)
    say(f"its batch script is told; waiting up to {bound} s for the nodes to drain")
    _run("scancel", "--batch", "--signal=TERM", job)
    end = _wait(job, begin + bound, every_s)
    if end is None:
        _run("scancel", job)
        raise PolicyError(
            f"job {job} had not drained after {bound} s: it was cancelled, and Slurm kills what still runs",
            hint="see the job's log for what did not end; a node with an engine killed while it unpins may need a look",
        )
    return Ended(job, "drained", end, time.monotonic() - begin)


def _bound(job: str, comment: str) -> int:
    found = re.match(rf"{COMMENT}(\d+)", comment)
    if found is None:
        raise UsageError(
            f"job {job} does not say how long it drains: not written by graftwork launch, or with another comment",
            hint="give --bound SECONDS if its batch script traps TERM, else use scancel",
        )
    return int(found[1]) + SLACK_S


def _wait(job: str, deadline: float, every_s: float) -> str | None:
    """The state in which *job* ended, "" if Slurm has forgotten it; None if it is still there at *deadline*."""
    while True:
        state, _ = _look(job)
        if state in _ENDED or not state:
            return state
        if time.monotonic() > deadline:
            return None
        time.sleep(every_s)


def _look(job: str) -> tuple[str, str]:
    """The state and the comment of *job*; both empty if Slurm does not know it (any more)."""
    found = _run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T|%k", unknown="")
    rows = found.splitlines()
    if len(rows) > 1:
        raise UsageError(f"{job} is {len(rows)} jobs", hint="name one of an array as JOB_INDEX")
    state, _, comment = rows[0].partition("|") if rows else ("", "", "")
    return state, comment


def _run(command: str, *arguments: str, unknown: str | None = None) -> str:
    """Run one of Slurm's commands; its output, nothing for a job that is just ending, *unknown* if it knows no such."""
    program = shutil.which(command)
    if program is None:
        raise UsageError(f"{command} is not on PATH", hint="run this where Slurm's commands are, such as a login node")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout
    said = " ".join(done.stderr.replace(f"{command}: ", "").split())
    if _TOO_LATE in said:
        return ""
    if _UNKNOWN in said:
        if unknown is not None:
            return unknown
        raise UsageError(f"{command}: {said}", hint="squeue --me lists your jobs")
    if re.search(r"Unable to contact|Connection refused|timed out|Could not establish|DNS SRV", said):
        raise UnreachableError(f"{command}: {said}", hint="is Slurm's controller up? scontrol ping")
    raise UsageError(f"{command}: {said}", hint="scancel and squeue have to work for this job")
