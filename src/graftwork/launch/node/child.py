"""One component as a process: started in a session of its own, told to end once, and known by all it has started."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from graftwork.launch.node import envoy, listening, processes
from graftwork.launch.node.board import say
from graftwork.launch.node.plan import STORE, Part

_HTTP_EVERY_S = 1.0
# Python ignores or handles these; a component starts with what it would have from a shell.
_DEFAULTS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGURG, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Child:
    """A started component: *pid* leads its session. Built by `start`, or again from what `facts` gave.

    *note* is a file on this node that says that it was told to end, also to who takes over from a killed supervisor.
    """

    def __init__(self, name: str, order: int, drain_s: int, pid: int, base_id: str | None, note: str) -> None:
        self.name, self.order, self.drain_s, self.pid, self.base_id = name, order, drain_s, pid, base_id
        self.note = note
        self.rc: int | None = None
        self._told = Path(note).exists()
        self._told_rest = self._gone = False
        self._since = time.monotonic()
        self._asked_http = 0.0

    def facts(self) -> dict[str, Any]:
        """What another process needs to go on with this child; the arguments of the constructor."""
        names = ("name", "order", "drain_s", "pid", "base_id", "note")
        return {name: getattr(self, name) for name in names}

    def ended(self) -> bool:
        """Whether the leader has ended; `rc` is then its exit code, negative for a signal."""
        if self.rc is None:
            self.rc = processes.exit_code(self.pid)
        return self.rc is not None

    def is_ready(self, ready: dict[str, Any], port: int, path: str) -> bool:
        """Whether it serves, as ``Ready`` of the deployment says: *port* or *path* is listened on, or answers."""
        if ready["kind"] == "none":
            return True
        if ready["kind"] == "unix":
            return listening.unix_listener(self.pid, path)
        address = listening.listener(self.pid, port)
        if address is None or ready["kind"] == "tcp":
            return address is not None
        now = time.monotonic()
        if now - self._asked_http < _HTTP_EVERY_S:
            return False
        self._asked_http = now
        return listening.answers(address, port, path)

    def age_s(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._since

    def tell(self) -> None:
        """Ask it to end, once, however often this is called: SIGTERM to the leader, or to what it has left behind."""
        if self._told:
            return
        self._told = True
        self._take_note()
        if not self.ended():
            processes.send(self.pid, signal.SIGTERM)
        else:
            self._tell_rest(processes.members(self.pid, processes.table()))

    def gone(self, now: processes.Table) -> bool:
        """Whether nothing of it is left, the leader and all it has started.

        Of the store, what a leader leaves behind is told too: the leader may be a wrapper that passes nothing on. An
        engine's workers are not: they are ending already, and a second SIGTERM would cut that short.
        """
        if self._gone:
            return True
        left = processes.members(self.pid, now)
        self._gone = self.ended() and not left
        if self._told and left and self.ended() and self.order == STORE:
            self._tell_rest(left)
        return self._gone

    def kill(self) -> None:
        """SIGKILL to all that is left of it."""
        for pid in processes.members(self.pid, processes.table()):
            processes.send(pid, signal.SIGKILL)

    def clean(self) -> None:
        """Remove what it leaves on the host, after it has gone."""
        if self.base_id:
            envoy.clean(self.base_id)

    def _take_note(self) -> None:
        try:
            Path(self.note).touch()
        except OSError as error:  # a full disk must not keep it from being told
            say(f"{self.note}: {error}")

    def _tell_rest(self, left: set[int]) -> None:
        if not self._told_rest:
            self._told_rest = True
            say(f"{self.name}: the leader has ended, {len(left)} of its processes are told")
            for pid in left:
                processes.send(pid, signal.SIGTERM)


def start(part: Part, argv: list[str], environment: dict[str, str], log: Path, note: Path) -> Child:
    """Start *part* as *argv*, an absolute program and its arguments, without stdin, all output appended to *log*.

    OSError when it cannot be run. The log is a file and no pipe: a reader would get the signals of the job too.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    pid = os.posix_spawn(
        argv[0], argv, environment, file_actions=actions, setsid=True, setsigmask=(), setsigdef=_DEFAULTS
    )
    base_id = envoy.id_file(argv) if envoy.is_envoy(argv) else None
    return Child(part.name, part.order, part.drain_s, pid, base_id, str(note))
