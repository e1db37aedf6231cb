"""A device that does nothing until somebody waits for it: the worst case of an asynchronous stream, without any timing.

Work that is launched stays undone; `Event.synchronize` does all the work that the event stands behind. Whoever reads
memory without waiting reads it as it was before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

STALE = -1


class Stream:
    """Work in order, done up to ``done``. ``waiters`` are the threads that waited for it, by name."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []
        self.done = 0
        self.waiters: list[str] = []

    def launch(self, work: Callable[[], None]) -> None:
        self.work.append(work)

    def finish(self, position: int) -> None:
        """Do all work before *position*."""
        while self.done < position:
            self.done += 1
            self.work[self.done - 1]()


class Event:
    """As a device event: recorded behind the work launched so far, or never, and then there is nothing to wait for."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.stream: Stream | None = None
        self.position = 0

    def record(self, stream: Stream) -> None:
        self.stream, self.position = stream, len(stream.work)

    def synchronize(self) -> None:
        if self.stream is not None:
            self.stream.waiters.append(threading.current_thread().name)
            self.stream.finish(self.position)


class Device:
    """KV memory by pages, and the stream on which forwards write it."""

    def __init__(self, pages: int) -> None:
        self.memory = np.full(pages, STALE)
        self.forward_stream = Stream()

    def launch_forward(self, pages: list[int], value: int) -> None:
        """Launch a forward that writes *value* into *pages*."""

        def write() -> None:
            self.memory[pages] = value

        self.forward_stream.launch(write)
