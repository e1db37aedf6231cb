"""Processes as /proc and the kernel's process control show them (proc(5), prctl(2))."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Collection, Dict

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

Table = Dict[int, "Process"]


@dataclass(frozen=True)
class Process:
    """A process that lives; its parent, process group and session."""

    parent: int
    group: int
    session: int


def table() -> Table:
    """Every process that lives now; one that ended and was not yet waited for does not."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):  # it ended meanwhile
            words = (entry / "stat").read_text("ascii", "replace").rpartition(")")[2].split()
            if words[0] not in "ZX":
                found[int(entry.name)] = Process(int(words[1]), int(words[2]), int(words[3]))
    return found


def members(leader: int, now: Table) -> set[int]:
    """What lives of the session that *leader* leads, and what descends from that; also when the leader has ended.

    Only descendants of this process: a number that another process has got meanwhile is none of ours.
    """
    seeds = {pid for pid, process in now.items() if pid == leader or leader in (process.session, process.group)}
    return (seeds | descendants(seeds, now)) & descendants({os.getpid()}, now)


def descendants(roots: Collection[int], now: Table) -> set[int]:
    """All children of *roots*, and theirs; without *roots* themselves."""
    children: dict[int, set[int]] = {}
    for pid, process in now.items():
        children.setdefault(process.parent, set()).add(pid)
    found: set[int] = set()
    todo = list(roots)
    while todo:
        new = children.get(todo.pop(), set()) - found
        found |= new
        todo.extend(new)
    return found - set(roots)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none is lost. OSError if refused."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(number: signal.Signals) -> None:
    """Be sent *number* when the parent ends. OSError if refused."""
    _prctl(_PR_SET_PDEATHSIG, int(number))


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {option}: {os.strerror(code)}")


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal; a process that has ended meanwhile needs none."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def exit_code(pid: int) -> int | None:
    """The exit code of our child *pid*, negative for the signal that ended it; None while it lives.

    The child is not waited for: until `reap` takes it away, no other process can get its number. Of one that was
    waited for before, by a supervisor that is dead, the code is not known: 0.
    """
    try:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 0
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def reap(leaders: Collection[int]) -> None:
    """Take away orphans of ours that have ended; the first of *leaders* that has ended is left for `exit_code`."""
    with contextlib.suppress(ChildProcessError):
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid in leaders:
                return
            os.waitpid(ended.si_pid, 0)


def kill_descendants(bound_s: float) -> set[int]:
    """SIGKILL whatever still descends from this process; what does not die within *bound_s* is returned."""
    deadline = time.monotonic() + bound_s
    while True:
        left = descendants({os.getpid()}, table())
        reap(())
        if not left or time.monotonic() > deadline:
            return left
        for pid in left:
            send(pid, signal.SIGKILL)
        time.sleep(0.05)
