"""Triton kernels that find which KV rows a decode step lacks, in launches that hand over through memory.

A launch boundary is the only barrier that is relied on. All launch shapes are fixed by the batch's width, all work is
bounded by what the device finds, so a captured graph stays right when the batch in it changes. Names and shapes:
T rows of the batch, K = TOPK columns, R = REGIONS, H = SLOTS hot rows of a region, S = STRIDE >= H + 1 rows from one
region to the next. Region r has rows r * S to r * S + S - 1 of the hot buffer; row r * S + H is for the newest token.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def region_of(slot_ptr, region_ptr, row, REGIONS: tl.constexpr):
    """The region of a batch row as int64; -1 for graph padding (slot -1) and for any number that is no region."""
    region = tl.load(region_ptr + row).to(tl.int64)
    real = (tl.load(slot_ptr + row) >= 0) & (region >= 0) & (region < REGIONS)
    return tl.where(real, region, -1)


# Sizes that follow the batch are not specialised on: nothing is to be compiled again while a graph is captured.
@triton.jit(do_not_specialize=["topk_stride", "table_stride", "table_width", "blocks"])
def invert_kernel(
    topk_ptr,  # int32 [T, topk_stride]: positions within the request, -1 where there is none
    seq_lens_ptr,  # int32 [T]: tokens of the request, the newest included
    slot_ptr,  # int64 [T]: the newest token's host row, -1 for padding
    region_ptr,  # int32 [T]
    table_ptr,  # int32 [T, table_stride]: the request's blocks of host rows
    inverse_ptr,  # out, int16 [R, MAX_LEN]: the column that asks for a position; true only where want agrees
    want_ptr,  # out, int32 [T, K]: positions to look up, -1 for the rest
    index_ptr,  # out, int32 [T, K]: the newest token's hot row, else -1
    length_ptr,  # out, int32 [T]: columns up to the last one that is used
    count_ptr,  # out, int32 [T]: 0
    bins_ptr,  # out, int32 [BINS]: 0
    stats_ptr,  # int64 [3]; [2] counts entries that cannot be (later than the newest, no such block)
    topk_stride,
    table_stride,
    table_width,
    blocks,
    REGIONS: tl.constexpr,
    SLOTS: tl.constexpr,
    STRIDE: tl.constexpr,
    TOPK: tl.constexpr,
    MAX_LEN: tl.constexpr,
    PAGE: tl.constexpr,
    BINS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Grid (T,). Writes every element of its outputs, for padded rows too."""
    row = tl.program_id(0).to(tl.int64)
    if row == 0:
        bins = tl.arange(0, BINS)
        tl.store(bins_ptr + bins, tl.zeros([BINS], tl.int32))
    region = region_of(slot_ptr, region_ptr, row, REGIONS)
    col = tl.arange(0, BLOCK_K)
    inside = col < TOPK
    pos = tl.load(topk_ptr + row * topk_stride + col, mask=inside & (region >= 0), other=-1)
    newest = tl.load(seq_lens_ptr + row) - 1
    asked = pos >= 0
    page = pos // PAGE
    old = asked & (pos < newest) & (pos < MAX_LEN) & (page < table_width)
    block = tl.load(table_ptr + row * table_stride + page, mask=old, other=-1)
    old = old & (block >= 0) & (block < blocks)
    new = asked & (pos == newest)
    tl.store(want_ptr + row * TOPK + col, tl.where(old, pos, -1), mask=inside)
    tl.store(inverse_ptr + region * MAX_LEN + pos, col.to(tl.int16), mask=old)
    hot = (region * STRIDE + SLOTS).to(tl.int32)
    tl.store(index_ptr + row * TOPK + col, tl.where(new, hot, -1), mask=inside)
    tl.store(length_ptr + row, tl.max(tl.where(old | new, col + 1, 0), axis=0))
    tl.store(count_ptr + row, 0)
    refused = tl.sum((asked & ~old & ~new).to(tl.int32), axis=0)
    if refused > 0:
        tl.atomic_add(stats_ptr + 2, refused.to(tl.int64), sem="relaxed")


@triton.jit
def find_kernel(
    slot_ptr,  # int64 [T]
    region_ptr,  # int32 [T]
    want_ptr,  # int32 [T, K]
    inverse_ptr,  # int16 [R, MAX_LEN]
    tags_ptr,  # int32 [R, S]: the position that a hot row holds, -1 for none
    order_ptr,  # in and out, int16 [R, S]: hot rows, the longest unused first
    index_ptr,  # out where there is a hit, int32 [T, K]
    victims_ptr,  # out, int16 [T, K]: the hot rows to load into, count of them
    count_ptr,  # out, int32 [T]: misses of the row
    stats_ptr,  # int64 [3]; [0] counts hits, [1] misses
    REGIONS: tl.constexpr,
    SLOTS: tl.constexpr,
    STRIDE: tl.constexpr,
    TOPK: tl.constexpr,
    MAX_LEN: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Grid (T,). Finds hits and victims, and moves the order on: other rows, loaded ones, hits, each as they stood.

    A hot row with tag t is a hit if the column that the inverse map names for t does ask for t. So stale entries of the
    map do no harm and it is never cleared. The order is stored in place: no address is known before all of it is read,
    because each depends on the number of hits.
    """
    row = tl.program_id(0).to(tl.int64)
    region = region_of(slot_ptr, region_ptr, row, REGIONS)
    if region < 0:
        return
    inverse = inverse_ptr + region * MAX_LEN
    wants = want_ptr + row * TOPK
    col = tl.arange(0, BLOCK_K)
    want = tl.load(wants + col, mask=col < TOPK, other=-1)
    speaker = tl.load(inverse + want, mask=want >= 0, other=-1).to(tl.int32)
    distinct = tl.sum(((want >= 0) & (speaker == col)).to(tl.int32), axis=0)

    age = tl.arange(0, BLOCK_H)
    live = age < SLOTS
    slot = tl.load(order_ptr + region * STRIDE + age, mask=live, other=0).to(tl.int32)
    tag = tl.load(tags_ptr + region * STRIDE + slot, mask=live, other=-1)
    at = tl.load(inverse + tag, mask=tag >= 0, other=-1).to(tl.int32)
    named = (at >= 0) & (at < TOPK)
    hit = named & (tl.load(wants + at, mask=named, other=-1) == tag)
    hits = tl.sum(hit.to(tl.int32), axis=0)
    misses = distinct - hits

    spare = (live & ~hit).to(tl.int32)
    nth = tl.cumsum(spare, axis=0) - spare  # of the rows that are no hit; age - nth is the same for hits
    victim = live & ~hit & (nth < misses)
    kept = tl.where(victim, SLOTS - distinct + nth, nth - misses)
    place = tl.where(hit, SLOTS - hits + age - nth, kept)
    tl.store(order_ptr + region * STRIDE + place, slot.to(tl.int16), mask=live)
    tl.store(victims_ptr + row * TOPK + nth, slot.to(tl.int16), mask=victim)
    tl.store(index_ptr + row * TOPK + at, (region * STRIDE + slot).to(tl.int32), mask=hit)
    tl.store(count_ptr + row, misses)
    tl.atomic_add(stats_ptr, hits.to(tl.int64), sem="relaxed")
    tl.atomic_add(stats_ptr + 1, misses.to(tl.int64), sem="relaxed")


@triton.jit(do_not_specialize=["table_stride"])
def place_kernel(
    slot_ptr,  # int64 [T]
    region_ptr,  # int32 [T]
    want_ptr,  # int32 [T, K]
    inverse_ptr,  # int16 [R, MAX_LEN]
    table_ptr,  # int32 [T, table_stride]
    victims_ptr,  # int16 [T, K]
    tags_ptr,  # in and out, int32 [R, S]
    index_ptr,  # in and out, int32 [T, K]
    source_ptr,  # out, int64 [T, K]: host row of each miss
    target_ptr,  # out, int32 [T, K]: hot row of each miss
    nth_ptr,  # out, int32 [T, K]: its number within its bin
    bins_ptr,  # in and out, int32 [BINS]: misses of each bin of host addresses
    table_stride,
    REGIONS: tl.constexpr,
    STRIDE: tl.constexpr,
    TOPK: tl.constexpr,
    MAX_LEN: tl.constexpr,
    PAGE: tl.constexpr,
    BIN_SHIFT: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Grid (T,). Gives each missing position a hot row, tags it, and lists what is to be copied from where."""
    row = tl.program_id(0).to(tl.int64)
    region = region_of(slot_ptr, region_ptr, row, REGIONS)
    if region < 0:
        return
    col = tl.arange(0, BLOCK_K)
    inside = col < TOPK
    here = row * TOPK + col
    want = tl.load(want_ptr + here, mask=inside, other=-1)
    index = tl.load(index_ptr + here, mask=inside, other=-1)
    speaker = tl.load(inverse_ptr + region * MAX_LEN + want, mask=want >= 0, other=-1).to(tl.int32)
    miss = (want >= 0) & (speaker == col) & (index < 0)
    rank = tl.cumsum(miss.to(tl.int32), axis=0) - 1
    victim = tl.load(victims_ptr + row * TOPK + rank, mask=miss, other=0)
    target = (region * STRIDE + victim).to(tl.int32)
    mine = tl.where(miss, target, index)
    # A position that is asked for twice has one hot row: that of the column which speaks for it.
    shared = tl.gather(mine, tl.where(want >= 0, speaker, col), axis=0)
    tl.store(index_ptr + here, shared, mask=inside)
    tl.store(tags_ptr + region * STRIDE + victim, want, mask=miss)

    block = tl.load(table_ptr + row * table_stride + want // PAGE, mask=miss, other=0)
    source = block.to(tl.int64) * PAGE + want % PAGE
    nth = tl.atomic_add(bins_ptr + (source >> BIN_SHIFT), 1, mask=miss, sem="relaxed")
    out = row * TOPK + rank
    tl.store(source_ptr + out, source, mask=miss)
    tl.store(target_ptr + out, target, mask=miss)
    tl.store(nth_ptr + out, nth, mask=miss)


@triton.jit
def sort_kernel(
    count_ptr,  # int32 [T]
    source_ptr,  # int64 [T, K]
    target_ptr,  # int32 [T, K]
    nth_ptr,  # int32 [T, K]
    bins_ptr,  # int32 [BINS]
    sorted_source_ptr,  # out, int64 [T * K]: misses of the whole batch, bin by bin
    sorted_target_ptr,  # out, int32 [T * K]
    total_ptr,  # out, int32 [1]
    TOPK: tl.constexpr,
    BINS: tl.constexpr,
    BIN_SHIFT: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Grid (T,). The scatter of a counting sort: rows that are close in host memory are copied at the same time."""
    row = tl.program_id(0).to(tl.int64)
    misses = tl.load(count_ptr + row)
    if (misses == 0) & (row != 0):
        return
    sizes = tl.load(bins_ptr + tl.arange(0, BINS))
    starts = tl.cumsum(sizes, axis=0) - sizes
    if row == 0:
        tl.store(total_ptr, tl.sum(sizes, axis=0))
    rank = tl.arange(0, BLOCK_K)
    here = row * TOPK + rank
    listed = rank < misses
    source = tl.load(source_ptr + here, mask=listed, other=0)
    target = tl.load(target_ptr + here, mask=listed, other=0)
    nth = tl.load(nth_ptr + here, mask=listed, other=0)
    at = tl.gather(starts, (source >> BIN_SHIFT).to(tl.int32), axis=0) + nth
    tl.store(sorted_source_ptr + at, source, mask=listed)
    tl.store(sorted_target_ptr + at, target, mask=listed)
