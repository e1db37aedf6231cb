"""What the bench of the HiSparse kernels gives them: a pinned pool, requests in it, selections that miss by plan."""

from __future__ import annotations

import contextlib
import mmap
from dataclasses import dataclass

import torch
from hot_kv.state import HotShape


@dataclass(frozen=True)
class Case:
    """One line of the table. misses: share of the selection that is not hot; layout of each request's blocks in the
    pool; pattern: where the missing positions are."""

    row_bytes: int
    layout: str  # scattered | contiguous
    pattern: str  # uniform | recent: 70 % in the last eighth of the context
    batch: int
    misses: float

    def missing(self, topk: int) -> int:
        """Positions that miss in one row."""
        return round(self.misses / 100 * topk)


class Pool:
    """Host memory for all layers. On a GPU: registered at exact size, pages touched first, seen through an alias."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self._mapping = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared has no huge pages
        with contextlib.suppress(OSError):  # a kernel without huge pages: touching takes longer, nothing else
            self._mapping.madvise(mmap.MADV_HUGEPAGE)
        self.memory = torch.frombuffer(self._mapping, dtype=torch.int32)
        # Rows of one stretch all differ, and stretches are shifted: a wrong row does not pass for the right one.
        for number, part in enumerate(self.memory.split(2**28)):
            torch.arange(len(part), out=part).add_(7919 * number)
        self.registered = device.type == "cuda"
        self.alias = self.memory
        if self.registered:
            outcome = int(torch.cuda.cudart().cudaHostRegister(self.memory.data_ptr(), nbytes, 0))
            if outcome:
                raise RuntimeError(f"cudaHostRegister of {nbytes} bytes: error {outcome}")
            self.alias = torch.as_tensor(_Seen(self.memory), device=device)

    def layers(self, count: int, words: int) -> list[torch.Tensor]:
        """The pool in *count* equal parts of whole blocks, each int32 [rows, words] as the device sees it."""
        rows = self.alias.numel() // (count * words * 64) * 64
        return [self.alias[i * rows * words : (i + 1) * rows * words].view(rows, words) for i in range(count)]

    def close(self) -> None:
        """Unregister, after all work is done."""
        if self.registered:
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaHostUnregister(self.memory.data_ptr())


class _Seen:
    """Registered host memory, described as device memory at the same address."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.__cuda_array_interface__ = {
            "shape": tuple(memory.shape),
            "typestr": "<i4",
            "data": (memory.data_ptr(), False),
            "version": 3,
        }


@dataclass(frozen=True)
class Chosen:
    """Selections of one layer, int32 [batch, topk], and the positions that the last of them lacks, [batch, missing]."""

    turns: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    fresh: torch.Tensor


class Traffic:
    """The batch of a case: tables, lengths, and for each layer three selections in turn.

    The first two fill the hot rows, as those of a request that has run for long. The third keeps the second but for as
    many positions as are to miss, which are in neither. Every layer and round has positions of its own.
    """

    def __init__(self, case: Case, shape: HotShape, layer: torch.Tensor, context: int, seed: int) -> None:
        self.case, self.shape, self.context, self.device = case, shape, context, layer.device
        self.random = torch.Generator(self.device).manual_seed(seed)
        blocks, each = layer.shape[0] // shape.page, -(-context // shape.page)
        wanted = case.batch * each
        if wanted >= blocks:
            raise ValueError(f"{case.batch} requests of {context} tokens do not fit a layer of {layer.shape[0]} rows")
        if case.missing(shape.topk) + shape.slots >= context:
            raise ValueError(f"a context of {context} tokens has too few positions that are not hot")
        chosen = torch.arange(wanted, device=self.device)
        if case.layout == "scattered":
            chosen = torch.randperm(blocks - 1, generator=self.random, device=self.device)[:wanted]
        self.table = (chosen + 1).view(case.batch, each).to(torch.int32)
        self.seq_lens = torch.full((case.batch,), context, dtype=torch.int32, device=self.device)
        self.slots = self.host_rows(self.seq_lens[:, None] - 1).flatten()

    def choose(self) -> Chosen:
        """For one layer, fresh ones on every call."""
        topk, missing = self.shape.topk, self.case.missing(self.shape.topk)
        older = min(self.shape.slots - topk, topk)
        order = self._shuffled(self.context - 1)
        first = torch.full((self.case.batch, topk), -1, dtype=torch.int32, device=self.device)
        first[:, :older] = order[:, :older]
        second = order[:, older : older + topk]
        fresh = self._by_pattern(order[:, older + topk :], missing)
        timed = torch.cat([second[:, : topk - missing], fresh], dim=1)
        timed = timed.gather(1, self._shuffled(topk).to(torch.int64))
        return Chosen((first, second.contiguous(), timed), fresh)

    def host_rows(self, positions: torch.Tensor) -> torch.Tensor:
        """Host rows, int64, of positions [batch, any]."""
        positions = positions.to(torch.int64)
        return self.table.to(torch.int64).gather(1, positions // self.shape.page) * self.shape.page + (
            positions % self.shape.page
        )

    def _shuffled(self, count: int) -> torch.Tensor:
        """The numbers below *count* in an order of its own for each row."""
        keys = torch.rand(self.case.batch, count, generator=self.random, device=self.device)
        return keys.argsort(dim=1).to(torch.int32)

    def _by_pattern(self, unused: torch.Tensor, missing: int) -> torch.Tensor:
        if self.case.pattern == "recent":
            late = unused >= self.context - self.context // 8
            wanted = late & (late.cumsum(1) <= round(0.7 * missing))
            # Recent ones up to their share, then earlier ones, then what is left.
            preference = torch.where(wanted, 0, torch.where(late, 2, 1))
            unused = unused.gather(1, preference.argsort(dim=1, stable=True))
        return unused[:, :missing]
