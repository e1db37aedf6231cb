"""What hot KV did, on its way from the device to the log and to Prometheus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass
class HotKVStats:
    """Of rank 0, since the last report: rows that were hot, rows that were copied, bytes that were copied.

    Then as they are now: GPU bytes of the hot buffers, host bytes of the pool, entries that no selection can have
    (`HotState.stats`), which must stay 0.
    """

    hits: int = 0
    misses: int = 0
    copied_bytes: int = 0
    hot_bytes: int = 0
    pool_bytes: int = 0
    refused: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of the selected rows that were hot, 0 to 1; 0 where none was selected."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else 0.0


class HotKVLog:
    """Adds up reports between two lines of the log."""

    def __init__(self) -> None:
        self._sum = HotKVStats()

    def observe(self, stats: HotKVStats | None) -> None:
        """Take a report; None where the step had none."""
        if stats is None:
            return
        done = self._sum
        self._sum = HotKVStats(
            done.hits + stats.hits,
            done.misses + stats.misses,
            done.copied_bytes + stats.copied_bytes,
            stats.hot_bytes,
            stats.pool_bytes,
            stats.refused,
        )

    def log(self, log_fn: Any, usage: float) -> None:
        """One line through *log_fn*, if there was a report. *usage*: share of the blocks that are in use."""
        seen, self._sum = self._sum, HotKVStats()
        if not seen.pool_bytes:
            return
        log_fn(
            "HiSparse: hit rate: %.1f%%, copied: %.2f GiB, host pool: %.1f of %.1f GiB, hot buffers: %.1f GiB",
            seen.hit_rate * 100,
            seen.copied_bytes / 2**30,
            usage * seen.pool_bytes / 2**30,
            seen.pool_bytes / 2**30,
            seen.hot_bytes / 2**30,
        )


class HotKVProm:
    """Counters and gauges, one of each for an engine; *counter* and *gauge* are the classes of the logger."""

    COUNTERS: ClassVar[dict[str, str]] = {
        "hits": "KV rows that decode found in a hot buffer",
        "misses": "KV rows that decode copied from the host pool",
        "copied_bytes": "Bytes copied from the host pool to hot buffers",
    }
    GAUGES: ClassVar[dict[str, str]] = {
        "hot_bytes": "GPU memory of the hot buffers in bytes",
        "pool_bytes": "Pinned host memory of the KV pool in bytes",
        "refused": "Selected positions that cannot be; must be 0",
    }

    def __init__(
        self, vllm_config: Any, labels: list[str], engines: dict[int, list[object]], counter: Any, gauge: Any
    ) -> None:
        self._by_name: dict[str, dict[int, Any]] = {}
        if vllm_config.attention_config.hisparse_config is None:
            return
        for kind, names, more in (
            (counter, self.COUNTERS, {}),
            (gauge, self.GAUGES, {"multiprocess_mode": "mostrecent"}),
        ):
            for name, text in names.items():
                metric = kind(name=f"vllm:hisparse_{name}", documentation=text, labelnames=labels, **more)
                self._by_name[name] = {engine: metric.labels(*values) for engine, values in engines.items()}

    def observe(self, stats: HotKVStats | None, engine: int) -> None:
        """Take the report of an engine; None where the step had none."""
        if stats is None or not self._by_name:
            return
        for name in self.COUNTERS:
            self._by_name[name][engine].inc(getattr(stats, name))
        for name in self.GAUGES:
            self._by_name[name][engine].set(getattr(stats, name))
