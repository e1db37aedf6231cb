"""Which request has which hot region. A region follows its request, not the row that the request has in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """regions: of each row, in the order of the rows; resets: those to empty before the step runs."""

    regions: list[int]
    resets: list[int]


class RegionMap:
    """Regions by request id, for *count* requests at once. Plain Python: runs beside the scheduler's updates.

    A region is emptied when it gets another owner, when its owner was forgotten in between (finished, aborted,
    preempted), and when the owner's computed tokens fall: then positions that are hot may be computed again.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"{count} regions: at least one is needed")
        self.count = count
        self._free = list(range(count))
        self._owned: dict[str, int] = {}  # the longest unused request first
        self._computed: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._owned)

    def region(self, request: str) -> int | None:
        """The region of a request, None if it has none."""
        return self._owned.get(request)

    def forget(self, request: str) -> None:
        """The request is finished, aborted or preempted, or its tokens changed. One that has no region is ignored.

        Its region may be given away in the same step: what still runs was enqueued before the reset.
        """
        region = self._owned.pop(request, None)
        if region is not None:
            del self._computed[request]
            self._free.append(region)

    def step(self, rows: Sequence[tuple[str, int]]) -> Placement:
        """Place a batch: for each row the request and the tokens that it had computed before this step.

        Where no region is free, the request that has been out of the batch longest loses its own. ValueError if the
        batch names a request twice or has more requests than there are regions; then nothing was changed.
        """
        batch = dict(rows)
        if len(batch) != len(rows):
            raise ValueError("a request is in the batch twice")
        if len(batch) > self.count:
            raise ValueError(f"a batch of {len(batch)} requests, more than the {self.count} regions (max_num_seqs)")
        resets = []
        for request, computed in rows:
            region = self._owned.pop(request, None)
            if region is None:
                region = self._take(batch)
                resets.append(region)
            elif computed < self._computed[request]:
                resets.append(region)
            self._owned[request] = region
            self._computed[request] = computed
        return Placement([self._owned[request] for request, _ in rows], resets)

    def _take(self, batch: dict[str, int]) -> int:
        if not self._free:
            self.forget(next(request for request in self._owned if request not in batch))
        return self._free.pop(0)
