"""Measures whole processes: seconds, bytes at the registry's door, requests, memory of all processes, disk."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from counting import Counter
from services import Registry, tail

_PAGE = os.sysconf("SC_PAGE_SIZE")
_EVERY = 0.02  # seconds between two looks at memory


class Failed(Exception):
    """A step that ended with another code than 0, or too late."""


@dataclass(frozen=True)
class Result:
    """What one way cost. Bytes are as seen from the client; memory is resident, summed over the process tree."""

    name: str
    seconds: float
    received: int
    sent: int
    requests: int
    memory: int
    disk: int
    steps: dict[str, float]
    failed: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON: seconds rounded to milliseconds."""
        rounded = {name: round(value, 3) for name, value in self.steps.items()}
        return {**asdict(self), "seconds": round(self.seconds, 3), "steps": rounded}


@dataclass
class Steps:
    """Runs the processes of one way, one after the other, and keeps the time of each."""

    folder: Path
    deadline: float
    environment: Mapping[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    memory: int = 0

    def run(self, label: str, command: Sequence[str | Path], **environment: str) -> str:
        """Run *command* in the folder; its standard output. Failed with the end of its messages."""
        words, log = [str(word) for word in command], self.folder / "step.log"
        began = time.monotonic()
        with log.open("wb") as errors, (self.folder / "step.out").open("w+b") as output:
            process = subprocess.Popen(
                words,
                cwd=self.folder,
                env={**os.environ, **self.environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
            code = self._wait(process)
            self.seconds[label] = self.seconds.get(label, 0.0) + time.monotonic() - began
            output.seek(0)
            shown = output.read().decode("utf-8", "replace")
        if code is None:
            raise Failed(f"{label}: stopped, the time was over")
        if code:
            raise Failed(f"{label}: exit code {code}: {' '.join(words)}\n{shown[-500:]}{tail(log)}")
        return shown

    def _wait(self, process: subprocess.Popen[bytes]) -> int | None:
        """The exit code, or None when the deadline came first; with the peak of short processes' memory."""
        timer = threading.Timer(max(0.0, self.deadline - time.monotonic()), os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
        finally:
            timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        self.memory = max(self.memory, usage.ru_maxrss * 1024)
        late = process.returncode == -signal.SIGKILL and time.monotonic() >= self.deadline
        return None if late else process.returncode


Way = Sequence[Sequence[str | Path]] | Callable[[Steps], None]


def measure(
    name: str,
    way: Way,
    *,
    registry: Registry,
    door: Counter,
    folder: Path,
    daemons: Sequence[int] = (),
    timeout: float = 900,
    environment: Mapping[str, str] | None = None,
) -> Result:
    """Run *way*: commands, or a function that runs them through ``Steps``; what it cost.

    *door* is where the way must reach *registry*. *folder* is where it keeps its files: their disk space counts, as
    does the memory of *daemons* (process ids with all that they start) beside that of the way's own processes. Seconds
    are those of the steps alone. A way that fails or is stopped after *timeout* seconds has ``failed`` set.
    """
    steps = Steps(folder, time.monotonic() + timeout, environment or {})
    mark, received, sent = registry.mark(), door.received, door.sent
    failed = ""
    with _watching(daemons) as peak:
        try:
            if callable(way):
                way(steps)
            else:
                for number, command in enumerate(way):
                    steps.run(f"step {number + 1}", command)
        except Failed as error:
            failed = str(error)
    return Result(
        name,
        sum(steps.seconds.values()),
        door.received - received,
        door.sent - sent,
        len(registry.requests(mark)),
        max(peak[0], steps.memory),
        disk_of(folder),
        steps.seconds,
        failed,
    )


@contextmanager
def _watching(daemons: Sequence[int]) -> Iterator[list[int]]:
    """The highest memory in bytes, in a list of one, of this process's children and the *daemons*."""
    peak, over, known = [0], threading.Event(), set(_children(os.getpid()))

    def watch() -> None:
        while not over.wait(_EVERY):
            started = [pid for pid in _children(os.getpid()) if pid not in known]
            peak[0] = max(peak[0], sum(_resident(pid) for pid in _trees([*started, *daemons])))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def _trees(roots: Sequence[int]) -> set[int]:
    found: set[int] = set()
    left = list(roots)
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += _children(pid)
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(word) for word in (task / "children").read_text("ascii").split()]
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return found
    return found


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * _PAGE
    except (FileNotFoundError, ProcessLookupError):
        return 0


def disk_of(folder: Path) -> int:
    """The bytes that *folder* takes on its own file system, hard links counted once."""
    device, seen, total = folder.stat().st_dev, set(), 0
    left = [folder]
    while left:
        for path in left.pop().iterdir():
            found = path.lstat()
            if found.st_dev != device or found.st_ino in seen:
                continue
            seen.add(found.st_ino)
            total += found.st_blocks * 512
            if stat.S_ISDIR(found.st_mode) and not path.is_mount():
                left.append(path)
    return total
