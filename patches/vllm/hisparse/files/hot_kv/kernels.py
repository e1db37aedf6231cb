"""Triton kernels that find which KV rows a decode step lacks, and list them in the order of host addresses.

All launch shapes are fixed by the batch's width, all work is bounded by what the device finds, so a captured graph
stays right when the batch in it changes. Names and shapes: T rows of the batch, K = TOPK columns, R = REGIONS, H =
SLOTS hot rows of a region, S = STRIDE >= H + 1 rows from one region to the next. Region r has rows r * S to
r * S + S - 1 of the hot buffer; row r * S + H is for the newest token. EARLY: the launch may begin before the kernel
in front of it has ended (CUDA's programmatic dependent launch), and so waits for it before anything else; then it
lets the next one begin, which waits in turn.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def region_of(slot_ptr, region_ptr, row, REGIONS: tl.constexpr):
    """The region of a batch row as int64; -1 for graph padding (slot -1) and for any number that is no region."""
    region = tl.load(region_ptr + row).to(tl.int64)
    real = (tl.load(slot_ptr + row) >= 0) & (region >= 0) & (region < REGIONS)
    return tl.where(real, region, -1)


@triton.jit
def old_and_new(
    pos, newest, row, table_ptr, table_stride, table_width, blocks, MAX_LEN: tl.constexpr, PAGE: tl.constexpr
):
    """Of selected positions: which are older than the newest and have a block, that block, and which are the newest."""
    asked = pos >= 0
    page = pos // PAGE
    old = asked & (pos < newest) & (pos < MAX_LEN) & (page < table_width)
    block = tl.load(table_ptr + row * table_stride + page, mask=old, other=-1)
    old = old & (block >= 0) & (block < blocks)
    return old, block, asked & (pos == newest)


@triton.jit
def keep_own(want, old, speaks, row, col, first, tags_ptr, index_ptr, TOPK: tl.constexpr):
    """Hits of a request that is hot as a whole: a position has the hot row of its number, and none is given up."""
    held = tl.load(tags_ptr + first + want, mask=old, other=-1)
    hit = old & (held == want)
    tl.store(index_ptr + row * TOPK + col, (first + want).to(tl.int32), mask=hit)
    return tl.sum((hit & speaks).to(tl.int32), axis=0)


@triton.jit
def keep_by_age(
    age,
    live,
    slot,
    tag,
    want,
    distinct,
    row,
    first,
    inverse,
    order_ptr,
    index_ptr,
    victims_ptr,
    SLOTS: tl.constexpr,
    TOPK: tl.constexpr,
):
    """Hits among the hot rows, the longest unused of the others for the misses, and the order moved on."""
    at = tl.load(inverse + tag, mask=tag >= 0, other=-1).to(tl.int32)
    named = (at >= 0) & (at < TOPK)
    hit = named & (tl.gather(want, tl.where(named, at, 0), axis=0) == tag)
    spare = (live & ~hit).to(tl.int32)
    hits = SLOTS - tl.sum(spare, axis=0)
    misses = distinct - hits
    nth = tl.cumsum(spare, axis=0) - spare  # of the rows that are no hit; age - nth is the same for hits
    victim = live & ~hit & (nth < misses)
    kept = tl.where(victim, SLOTS - distinct + nth, nth - misses)
    place = tl.where(hit, SLOTS - hits + age - nth, kept)
    tl.store(index_ptr + row * TOPK + at, (first + slot).to(tl.int32), mask=hit)
    tl.store(victims_ptr + row * TOPK + nth, slot.to(tl.int16), mask=victim)
    tl.store(order_ptr + first + place, slot.to(tl.int16), mask=live)
    return hits


@triton.jit
def list_misses(
    miss,
    want,
    block,
    index,
    row,
    first,  # row of the region's tags and hot rows
    whole,
    victims_ptr,
    tags_ptr,
    bins_ptr,
    source_ptr,
    target_ptr,
    nth_ptr,
    TOPK: tl.constexpr,
    PAGE: tl.constexpr,
    BIN_SHIFT: tl.constexpr,
):
    """Give each missing position a hot row, tag it, and list what is to be copied from where; *index* with them."""
    rank = tl.cumsum(miss.to(tl.int32), axis=0) - 1
    victims = tl.load(victims_ptr + row * TOPK + rank, mask=miss & ~whole, other=0)
    slot = tl.where(whole, want, victims)
    target = (first + slot).to(tl.int32)
    index = tl.where(miss, target, index)
    tl.store(tags_ptr + first + slot, want, mask=miss)
    source = block.to(tl.int64) * PAGE + want % PAGE
    number = tl.atomic_add(bins_ptr + (source >> BIN_SHIFT), 1, mask=miss, sem="relaxed")
    out = row * TOPK + rank
    tl.store(source_ptr + out, source, mask=miss)
    tl.store(target_ptr + out, target, mask=miss)
    tl.store(nth_ptr + out, number, mask=miss)
    return index


# Sizes that follow the batch are not specialised on: nothing is to be compiled again while a graph is captured.
@triton.jit(do_not_specialize=["topk_stride", "table_stride", "table_width", "blocks"])
def resolve_kernel(
    topk_ptr,  # int32 [T, topk_stride]: positions within the request, -1 where there is none
    seq_lens_ptr,  # int32 [T]: tokens of the request, the newest included
    slot_ptr,  # int64 [T]: the newest token's host row, -1 for padding
    region_ptr,  # int32 [T]
    table_ptr,  # int32 [T, table_stride]: the request's blocks of host rows
    inverse_ptr,  # in and out, int16 [R, MAX_LEN]: the column that asks for a position; true only where topk agrees
    tags_ptr,  # in and out, int32 [R, S]: the position that a hot row holds, -1 for none
    order_ptr,  # in and out, int16 [R, S]: hot rows, the longest unused first
    index_ptr,  # out, int32 [T, K]: hot row of each column, -1 for none
    length_ptr,  # out, int32 [T]: columns up to the last one that is used
    victims_ptr,  # scratch, int16 [T, K]: the hot rows to load into, count of them
    count_ptr,  # out, int32 [T]: misses of the row
    source_ptr,  # out, int64 [T, K]: host row of each miss
    target_ptr,  # out, int32 [T, K]: hot row of each miss
    nth_ptr,  # out, int32 [T, K]: its number within its bin
    bins_ptr,  # in and out, int32 [BINS], 0 at the start: misses of each bin of host addresses
    stats_ptr,  # int64 [4], the layer's: hits, misses, entries that cannot be (later than the newest, no such block)
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
    BIN_SHIFT: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_H: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid (T,). Finds hits, gives each missing position a hot row, and moves the order on: others, loaded, hits.

    A hot row with tag t is a hit if the column that the inverse map names for t does ask for t. So stale entries of the
    map do no harm and it is never cleared. It names one of the columns that ask for a position, which speaks for all.
    While a request is no longer than its region it is hot as a whole: by position, and the order stays as it began.
    Threads of a program hand over through its own rows in memory, at the barriers; programs share only bins and stats.
    """
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    region = region_of(slot_ptr, region_ptr, row, REGIONS)
    col = tl.arange(0, BLOCK_K)
    inside = col < TOPK
    here = row * TOPK + col
    tl.store(index_ptr + here, tl.full([BLOCK_K], -1, tl.int32), mask=inside)
    if region < 0:
        tl.store(length_ptr + row, 0)
        tl.store(count_ptr + row, 0)
        return
    first = region * STRIDE
    newest = tl.load(seq_lens_ptr + row) - 1
    whole = newest <= SLOTS
    age = tl.arange(0, BLOCK_H)
    live = age < SLOTS
    slot = tl.load(order_ptr + first + age, mask=live, other=0).to(tl.int32)
    tag = tl.load(tags_ptr + first + slot, mask=live & ~whole, other=-1)

    pos = tl.load(topk_ptr + row * topk_stride + col, mask=inside, other=-1)
    old, block, new = old_and_new(pos, newest, row, table_ptr, table_stride, table_width, blocks, MAX_LEN, PAGE)
    want = tl.where(old, pos, -1)
    inverse = inverse_ptr + region * MAX_LEN
    tl.store(inverse + pos, col.to(tl.int16), mask=old)
    tl.store(length_ptr + row, tl.max(tl.where(old | new, col + 1, 0), axis=0))
    refused = tl.sum(((pos >= 0) & ~old & ~new).to(tl.int32), axis=0)
    if refused > 0:
        tl.atomic_add(stats_ptr + 2, refused.to(tl.int64), sem="relaxed")
    tl.debug_barrier()  # the map is written, order and tags are read

    speaker = tl.load(inverse + want, mask=old, other=-1).to(tl.int32)
    speaks = old & (speaker == col)
    distinct = tl.sum(speaks.to(tl.int32), axis=0)
    if whole:
        hits = keep_own(want, old, speaks, row, col, first, tags_ptr, index_ptr, TOPK)
    else:
        hits = keep_by_age(
            age, live, slot, tag, want, distinct, row, first, inverse, order_ptr, index_ptr, victims_ptr, SLOTS, TOPK
        )
    misses = distinct - hits
    tl.store(count_ptr + row, misses)
    tl.atomic_add(stats_ptr, hits.to(tl.int64), sem="relaxed")
    tl.atomic_add(stats_ptr + 1, misses.to(tl.int64), sem="relaxed")
    tl.debug_barrier()  # hits and victims are written

    index = tl.load(index_ptr + here, mask=inside, other=-1)
    if misses > 0:
        index = list_misses(
            speaks & (index < 0), want, block, index, row, first, whole,
            victims_ptr, tags_ptr, bins_ptr, source_ptr, target_ptr, nth_ptr, TOPK, PAGE, BIN_SHIFT,
        )  # fmt: skip
    shared = tl.gather(index, tl.where(old, speaker, col), axis=0)
    hot = (first + SLOTS).to(tl.int32)
    tl.store(index_ptr + here, tl.where(new, hot, shared), mask=inside)


@triton.jit
def sort_kernel(
    count_ptr,  # int32 [T]
    ends_ptr,  # out, int32 [BLOCK_T]: misses of all rows up to each, itself included
    source_ptr,  # in and out, int64 [2, T, K]: by batch row; then, from SORTED on, bin by bin
    target_ptr,  # in and out, int32 [2, T, K]
    nth_ptr,  # int32 [T, K]
    bins_ptr,  # int32 [BINS]
    TOPK: tl.constexpr,
    BINS: tl.constexpr,
    BIN_SHIFT: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_T: tl.constexpr,
    FEW: tl.constexpr,
    SORTED: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid (T,). The scatter of a counting sort: rows that are close in host memory are copied at the same time.

    Up to FEW rows stay as they are listed: they share nothing that an order would save.
    """
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    of_row = tl.arange(0, BLOCK_T)
    counts = tl.load(count_ptr + of_row, mask=of_row < tl.num_programs(0), other=0)
    if row == 0:
        tl.store(ends_ptr + of_row, tl.cumsum(counts, axis=0))
    misses = tl.load(count_ptr + row)
    if (misses > 0) & (tl.sum(counts, axis=0) > FEW):
        sizes = tl.load(bins_ptr + tl.arange(0, BINS))
        starts = tl.cumsum(sizes, axis=0) - sizes
        rank = tl.arange(0, BLOCK_K)
        here = row * TOPK + rank
        listed = rank < misses
        source = tl.load(source_ptr + here, mask=listed, other=0)
        target = tl.load(target_ptr + here, mask=listed, other=0)
        nth = tl.load(nth_ptr + here, mask=listed, other=0)
        at = SORTED + tl.gather(starts, (source >> BIN_SHIFT).to(tl.int32), axis=0) + nth
        tl.store(source_ptr + at, source, mask=listed)
        tl.store(target_ptr + at, target, mask=listed)
