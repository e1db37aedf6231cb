"""A device for the tests: tensors that live on it, and what it costs a host to read one.

The values are on the CPU. What is kept of a real device is the rule that matters here: its work is done in order, and a
host that reads a tensor waits until all of it is done.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import torch

READS = {
    getattr(torch.Tensor, name)
    for name in ("item", "tolist", "cpu", "numpy", "__int__", "__float__", "__bool__", "__index__", "nonzero")
}


class Deadlock(Exception):
    """A host waits for its device, and the device for something that never comes."""


class Device:
    """Runs submitted work in order, in a thread of its own. ``reads`` are the reads that made a host wait."""

    def __init__(self) -> None:
        self.reads: list[str] = []
        self._work: queue.Queue[Callable[[], Any]] = queue.Queue()
        self._done = threading.Condition()
        self._open = 0
        self._error: BaseException | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, work: Callable[[], Any]) -> None:
        """Return at once; *work* is done after all that was submitted before it."""
        with self._done:
            self._open += 1
        self._work.put(work)

    def wait(self, bound: float) -> None:
        """Until all submitted work is done; `Deadlock` if it is not after *bound* seconds."""
        with self._done:
            over = self._done.wait_for(lambda: not self._open or self._error, bound)
            if self._error:
                raise self._error
            if not over:
                raise Deadlock(f"the host waits for its device, and {self._open} of its work is never done")

    def holds(self, values: Any, dtype: torch.dtype) -> OnDevice:
        """A tensor of this device."""
        tensor = torch.tensor(values, dtype=dtype).as_subclass(OnDevice)
        OnDevice.device_of_test = self
        return tensor

    def _run(self) -> None:
        while not self._error:
            error = None
            try:
                self._work.get()()
            except Exception as raised:
                error = raised
            with self._done:
                self._open, self._error = self._open - 1, error
                self._done.notify_all()


class OnDevice(torch.Tensor):
    """Whatever is computed from it is on the device too. A read by the host is noted, and waits for the device.

    Two seconds are enough there: a healthy tree never reads, and on a stock one no time is enough.
    """

    device_of_test: Device

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        given = kwargs or {}
        to_host = func is torch.Tensor.to and "cpu" in map(str, (*args[1:], *given.values()))
        if func in READS or to_host:
            cls.device_of_test.reads.append(getattr(func, "__name__", str(func)))
            cls.device_of_test.wait(2)
            args = tuple(arg.as_subclass(torch.Tensor) if isinstance(arg, OnDevice) else arg for arg in args)
            return func(*args, **given)
        return super().__torch_function__(func, types, args, given)
