"""The job's shared folder as a notice board: what one node publishes, every node can read."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any


class Board:
    """Notices in ``RUN/board``, logs in ``RUN/logs``, a ``CRASH_<node>`` for each node on which something died."""

    def __init__(self, run: Path, job: str) -> None:
        self.run, self.job = run, job
        self.logs, self._notices = run / "logs", run / "board"

    def make(self) -> None:
        """Create the folders. OSError when the shared folder cannot be written."""
        for folder in (self.logs, self._notices):
            folder.mkdir(parents=True, exist_ok=True)

    def publish(self, name: str, value: dict[str, Any]) -> None:
        """Put up a notice, whole or not at all; an earlier one of this name is replaced."""
        write_whole(self._notices / name, json.dumps(value, sort_keys=True) + "\n")

    def read(self, name: str) -> dict[str, Any] | None:
        """The notice *name*, or None while nobody has put it up."""
        try:
            found: dict[str, Any] = json.loads((self._notices / name).read_text("utf-8"))
        except FileNotFoundError:
            return None
        return found

    def has(self, name: str) -> bool:
        """Whether the notice *name* is up. A shared folder that fails for a moment shows none."""
        try:
            return (self._notices / name).exists()
        except OSError as error:
            say(f"notice {name}: {error}")
            return False

    def crash(self, node: int, component: str, reason: str, rc: int | None) -> bool:
        """Write the marker of *node*. False, and the reason on stderr, where that fails: the drain goes on anyway."""
        facts = {"job": self.job, "node": node, "host": socket.gethostname(), "component": component, "rc": rc}
        time = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        facts.update(reason=reason, time=time)
        say(f"crash: {component}: {reason}")
        try:
            write_whole(self.run / f"CRASH_{node}", json.dumps(facts) + "\n")
        except OSError as error:
            say(f"the crash marker could not be written: {error}")
            return False
        return True


def write_whole(path: Path, text: str) -> None:
    """Replace *path* by *text* in one step; a reader on another node sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    draft.write_text(text, "utf-8")
    draft.replace(path)


def say(text: str) -> None:
    """A line on stderr, which Slurm writes to the job's log; a log that is gone must not stop a teardown."""
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%H:%M:%SZ")
    with contextlib.suppress(OSError):
        sys.stderr.write(f"graftwork {now} {text}\n")
        sys.stderr.flush()
