"""How many bytes and requests a run has cost, and the most that it may cost."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from graftwork.errors import PolicyError


@dataclass
class Traffic:
    """Counts bodies in bytes, over every registry it is given to. ``max_bytes`` limits both directions together."""

    max_bytes: int | None = None
    requests: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def check(self, size: int, what: str) -> None:
        """PolicyError if *size* more bytes for *what* would exceed the budget. To be called before a transfer."""
        spent = self.bytes_in + self.bytes_out
        if self.max_bytes is not None and spent + size > self.max_bytes:
            raise PolicyError(
                f"{what} would move {size:,} bytes after {spent:,}; the budget is {self.max_bytes:,}",
                hint="Raise --max-bytes, or copy the base to this registry once with 'graftwork mirror'.",
            )

    def add(self, *, requests: int = 0, bytes_in: int = 0, bytes_out: int = 0) -> None:
        """Count what was moved."""
        with self._lock:
            self.requests += requests
            self.bytes_in += bytes_in
            self.bytes_out += bytes_out


@dataclass(frozen=True)
class Patience:
    """How long to wait and how often to try again. Times in seconds.

    The n-th pause between tries is ``backoff`` * 2**n; a server's Retry-After up to ``longest_wait`` is honoured.
    ``commit`` is how long a registry may take to check a finished upload: it may read the whole blob again.
    """

    tries: int = 5
    backoff: float = 0.25
    longest_wait: float = 60.0
    connect: float = 10.0
    read: float = 60.0
    commit: float = 900.0
