"""Triton kernels that move KV rows: missing rows from host to hot, and the newest row to both.

Rows are WORDS int32 words (656 B: 164, 1,152 B: 288). Row numbers are widened to int64 before they are multiplied: in
int32 a row of 288 words wraps from row 7,456,541 on, and offsets in bytes wrap from row 3,273,604 of 656 bytes on.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait


@triton.jit
def copy_kernel(
    host_ptr,  # int32 [host rows, WORDS], device address of host memory
    hot_ptr,  # out, int32 [R * S, WORDS]
    source_ptr,  # int64 [2, T, K]: by batch row; then, from SORTED on, in the order of the whole batch
    target_ptr,  # int32 [2, T, K]
    ends_ptr,  # int32 [BLOCK_T]: misses of all batch rows up to each
    bins_ptr,  # out, int32 [BINS]: 0, for the next selection
    queue_ptr,  # in and out, int32 [2]: 0; rows that were taken off the list, and how many programs are through
    TOPK: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    BINS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_W: tl.constexpr,
    FEW: tl.constexpr,
    SORTED: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid (even,), however many rows there are. Programs take ROWS rows at a time off the list, in its order.

    So what is in flight at one moment lies close together in the list, and in host memory, however fast each one is.
    All take part if each is to take once; of a longer list half of them take the rows, or what is in flight spreads.
    """
    if EARLY:
        gdc_wait()
    ends = tl.load(ends_ptr + tl.arange(0, BLOCK_T))
    total = tl.max(ends, axis=0)
    if tl.program_id(0) == 0:
        tl.store(bins_ptr + tl.arange(0, BINS), tl.zeros([BINS], tl.int32))
    word = tl.arange(0, BLOCK_W)[None, :]
    programs = tl.num_programs(0)
    queued = total > programs * ROWS
    programs = tl.where(queued, programs // 2, programs)
    first = tl.where(tl.program_id(0) < programs, tl.program_id(0) * ROWS, total)
    while first < total:
        following = total
        if queued:
            following = programs * ROWS + tl.atomic_add(queue_ptr, ROWS, sem="relaxed")
        at = first + tl.arange(0, ROWS)
        listed = at < total
        place = SORTED + at
        if total <= FEW:
            before = ends[None, :] <= at[:, None]
            row = tl.sum(before.to(tl.int32), axis=1)
            place = row * TOPK + at - tl.max(tl.where(before, ends[None, :], 0), axis=1)
        source = tl.load(source_ptr + place, mask=listed, other=0).to(tl.int64)
        target = tl.load(target_ptr + place, mask=listed, other=0).to(tl.int64)
        mask = listed[:, None] & (word < WORDS)
        words = tl.load(host_ptr + source[:, None] * WORDS + word, mask=mask, other=0)
        tl.store(hot_ptr + target[:, None] * WORDS + word, words, mask=mask)
        first = following
    if queued & (tl.program_id(0) < programs):
        through = tl.atomic_add(queue_ptr + 1, 1, sem="acq_rel")
        if through == programs - 1:
            tl.store(queue_ptr, 0)
            tl.store(queue_ptr + 1, 0)


@triton.jit(do_not_specialize=["host_rows"])
def newest_kernel(
    rows_ptr,  # int32 [T, WORDS]: the newest row of each batch row
    slot_ptr,  # int64 [T]: its host row, -1 for padding
    region_ptr,  # int32 [T]
    host_ptr,  # out, int32 [host rows, WORDS]
    hot_ptr,  # out, int32 [R * S, WORDS]
    host_rows,
    REGIONS: tl.constexpr,
    SLOTS: tl.constexpr,
    STRIDE: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """Grid (T,). To the host row, and to the newest token's row of the region if the row has one."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + row).to(tl.int64)
    if (slot < 0) | (slot >= host_rows):
        return
    word = tl.arange(0, BLOCK_W)
    mask = word < WORDS
    words = tl.load(rows_ptr + row * WORDS + word, mask=mask, other=0)
    tl.store(host_ptr + slot * WORDS + word, words, mask=mask)
    region = tl.load(region_ptr + row).to(tl.int64)
    if (region >= 0) & (region < REGIONS):
        tl.store(hot_ptr + (region * STRIDE + SLOTS) * WORDS + word, words, mask=mask)
