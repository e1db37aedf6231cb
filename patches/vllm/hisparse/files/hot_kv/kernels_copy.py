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
    sorted_source_ptr,  # int64 [T * K]
    sorted_target_ptr,  # int32 [T * K]
    total_ptr,  # int32 [1]
    queue_ptr,  # in and out, int32 [2]: 0; the next row of the list, and how many programs are through
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCK_W: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid (any,), however many rows there are. Programs take ROWS rows at a time off the list, in its order.

    So what is in flight at one moment lies close together in the list, and in host memory, however fast each one is.
    """
    if EARLY:
        gdc_wait()
    total = tl.load(total_ptr)
    word = tl.arange(0, BLOCK_W)[None, :]
    first = tl.atomic_add(queue_ptr, ROWS, sem="relaxed")
    while first < total:
        following = tl.atomic_add(queue_ptr, ROWS, sem="relaxed")
        at = first + tl.arange(0, ROWS)
        listed = at < total
        source = tl.load(sorted_source_ptr + at, mask=listed, other=0).to(tl.int64)
        target = tl.load(sorted_target_ptr + at, mask=listed, other=0).to(tl.int64)
        mask = listed[:, None] & (word < WORDS)
        words = tl.load(host_ptr + source[:, None] * WORDS + word, mask=mask, other=0)
        tl.store(hot_ptr + target[:, None] * WORDS + word, words, mask=mask)
        first = following
    if tl.atomic_add(queue_ptr + 1, 1, sem="acq_rel") == tl.num_programs(0) - 1:
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
