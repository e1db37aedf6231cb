"""What the kernels keep on the device: the rows that are hot and their order, by layer and region; scratch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

HITS, MISSES, REFUSED = 0, 1, 2  # what HotState.stats counts, for each layer
INT16 = 2**15 - 1  # the kernels number hot rows and columns in it


@dataclass(frozen=True)
class HotShape:
    """The sizes of a hot buffer. ValueError, with the reason, for sizes that the kernels cannot address or serve.

    layers: layers that resolve; regions: requests that can be hot at once (max_num_seqs); slots: rows of a request
    that can be hot (device_buffer_size); topk: positions that a query selects; max_len: longest request in tokens;
    row_bytes: bytes of a token in one layer (656 fp8_ds_mla, 1,152 bf16); rows: widest batch, padding included;
    page: rows of a block, both of the host pool and of the hot buffer.
    """

    layers: int
    regions: int
    slots: int
    topk: int
    max_len: int
    row_bytes: int
    rows: int
    page: int = 64

    def __post_init__(self) -> None:
        for name in ("layers", "regions", "slots", "topk", "max_len", "row_bytes", "rows", "page"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least 1")
        if self.slots < self.topk:
            raise ValueError(f"device_buffer_size {self.slots} is less than index_topk {self.topk}")
        if self.slots > INT16 or self.topk > INT16:
            raise ValueError(f"device_buffer_size {self.slots} and index_topk {self.topk} must be at most {INT16}")
        if self.row_bytes % 16:
            raise ValueError(f"a KV row of {self.row_bytes} bytes is no multiple of 16")
        if self.regions * self.stride >= 2**31:
            raise ValueError(f"{self.regions} regions of {self.stride} rows do not fit 32-bit row numbers")
        if 2 * self.rows * self.topk >= 2**31:  # as they are listed, and sorted
            raise ValueError(f"{self.rows} rows of {self.topk} positions do not fit a 32-bit list")

    @property
    def stride(self) -> int:
        """Rows from one region to the next: the hot rows, one for the newest token, rounded up to whole pages of 64."""
        unit = math.lcm(64, self.page)
        return -(-(self.slots + 1) // unit) * unit

    @property
    def words(self) -> int:
        """int32 words of a row."""
        return self.row_bytes // 4

    @property
    def inert(self) -> int:
        """The region number of rows without a request: no region has it."""
        return self.regions

    @property
    def hot_rows(self) -> int:
        """Rows of one layer's hot buffer."""
        return self.regions * self.stride

    @property
    def hot_bytes(self) -> int:
        """Bytes of one layer's hot buffer."""
        return self.hot_rows * self.row_bytes


class HotState:
    """Tags, order and scratch on *device*; every tensor keeps its address for life, as captured graphs need it.

    tags int32 and order int16 are [layers, regions, stride], of which the first ``slots`` of a region are used.
    ``bins`` divide the host pool for the order of copies; their number must be a power of two.
    """

    def __init__(self, shape: HotShape, device: torch.device | str, bins: int = 1024) -> None:
        if bins < 1 or bins & (bins - 1):
            raise ValueError(f"{bins} bins: must be a power of two")
        self.shape = shape
        self.device = torch.device(device)
        self.bin_count = bins
        per_slot = (shape.layers, shape.regions, shape.stride)
        listed = (shape.rows, shape.topk)
        self.tags = self._new(per_slot, torch.int32, -1)
        self.order = self._new(per_slot, torch.int16)
        self._fresh = torch.arange(shape.stride, dtype=torch.int16, device=self.device)
        self.order[:] = self._fresh
        # Never cleared: an entry counts only if the column that it names asks for its position now.
        self.inverse = self._new((shape.regions, shape.max_len), torch.int16)
        self.index = self._new(listed, torch.int32, -1)
        self.victims = self._new(listed, torch.int16)
        self.source = self._new((2, *listed), torch.int64)
        self.target = self._new((2, *listed), torch.int32)
        self.nth = self._new(listed, torch.int32)
        self.count = self._new((shape.rows,), torch.int32)
        self.lengths = self._new((shape.rows,), torch.int32)
        self.ends = self._new((1 << (shape.rows - 1).bit_length(),), torch.int32)
        # These two are left at 0 by the copy.
        self.bins = self._new((bins,), torch.int32)
        self.queue = self._new((2,), torch.int32)
        # Rows of 32 bytes: for an address that is no multiple of 16 Triton compiles anew, inside a capture.
        self.stats = self._new((shape.layers, 4), torch.int64)
        self.region_rows = self._new((shape.rows,), torch.int32, shape.inert)

    def _new(self, size: tuple[int, ...], dtype: torch.dtype, value: int = 0) -> torch.Tensor:
        return torch.full(size, value, dtype=dtype, device=self.device)

    def nbytes(self) -> int:
        """Bytes of all its tensors; the hot buffers are not among them."""
        return sum(v.nbytes for v in vars(self).values() if isinstance(v, torch.Tensor))

    def reset(self, regions: Sequence[int]) -> None:
        """Empty *regions* in all layers, on the current stream: after what was enqueued before, without waiting."""
        if not regions:
            return
        self._judge(regions, self.shape.regions)
        which = self._upload(regions, torch.int64)
        self.tags.index_fill_(1, which, -1)
        fresh = self._fresh.expand(self.shape.layers, len(regions), self.shape.stride)
        self.order.index_copy_(1, which, fresh)

    def place_rows(self, regions: Sequence[int]) -> torch.Tensor:
        """Write the region of each batch row to ``region_rows``, the inert region to all others, and return it.

        To be called before each forward, outside a captured graph. Two rows must not share a region.
        """
        if len(regions) > self.shape.rows:
            raise ValueError(f"a batch of {len(regions)} rows, more than the {self.shape.rows} that were planned")
        self._judge(regions, self.shape.regions + 1)
        real = [region for region in regions if region != self.shape.inert]
        if len(set(real)) != len(real):
            raise ValueError("two rows of a batch share a region")
        padded = [*regions, *[self.shape.inert] * (self.shape.rows - len(regions))]
        self.region_rows.copy_(self._upload(padded, torch.int32), non_blocking=True)
        return self.region_rows

    def _judge(self, regions: Sequence[int], limit: int) -> None:
        wrong = [region for region in regions if not 0 <= region < limit]
        if wrong:
            raise ValueError(f"no such region: {wrong[0]} (there are {self.shape.regions})")

    def _upload(self, values: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        # A pinned block of its own for each upload: the allocator keeps it until the copy is through.
        here = torch.tensor(values, dtype=dtype, pin_memory=self.device.type == "cuda")
        return here.to(self.device, non_blocking=True)


def as_words(rows: torch.Tensor, row_bytes: int) -> torch.Tensor:
    """A contiguous tensor of any type and shape as int32 [rows, words], without a copy.

    ValueError where it is not contiguous, does not divide into rows, or does not begin at a multiple of 16 bytes.
    """
    if not rows.is_contiguous():
        raise ValueError("KV rows must be contiguous")
    if rows.nbytes % row_bytes:
        raise ValueError(f"{rows.nbytes} bytes do not divide into rows of {row_bytes}")
    if rows.data_ptr() % 16:
        raise ValueError("KV rows must begin at a multiple of 16 bytes")
    return rows.view(-1).view(torch.int32).view(-1, row_bytes // 4)
