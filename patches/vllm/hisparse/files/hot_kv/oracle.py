"""The kernels again, as plainly as possible, in PyTorch on the CPU; and the invariants of a real state, on any device.

Tests compare kernels and oracle after every step; the debug mode calls `broken`. Neither is meant to be fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from .state import HotShape, HotState


@dataclass
class Expected:
    """What one step must give: index [T, K], lengths [T], and the copies as (host row, hot row)."""

    index: torch.Tensor
    lengths: torch.Tensor
    copies: list[tuple[int, int]] = field(default_factory=list)
    hits: int = 0
    misses: int = 0
    refused: int = 0


class Oracle:
    """Tags and order of one layer as lists: tags[region][slot] is a position or -1; order[region] begins with the
    slot that was unused longest. While a request is no longer than a region, its positions are its slots."""

    def __init__(self, shape: HotShape) -> None:
        self.shape = shape
        self.tags = [[-1] * shape.slots for _ in range(shape.regions)]
        self.order = [list(range(shape.slots)) for _ in range(shape.regions)]

    def reset(self, regions: Sequence[int]) -> None:
        """Empty regions."""
        for region in regions:
            self.tags[region] = [-1] * self.shape.slots
            self.order[region] = list(range(self.shape.slots))

    def step(
        self,
        topk: torch.Tensor,
        seq_lens: torch.Tensor,
        slots: torch.Tensor,
        regions: torch.Tensor,
        table: torch.Tensor,
        host_rows: int,
        speakers: torch.Tensor | None = None,
    ) -> Expected:
        """One resolve, on copies of its arguments in host memory (see `kernels_launch.resolve`).

        Where a position is asked for twice, which of its columns is served first is free on a device. *speakers*, the
        inverse map after the kernels ran, makes the oracle choose the same; without it, it is the last column.
        """
        width = topk.shape[0]
        made = Expected(torch.full_like(topk, -1), torch.zeros(width, dtype=torch.int32))
        for row in range(width):
            region = int(regions[row])
            if slots[row] >= 0 and 0 <= region < self.shape.regions:
                said = None if speakers is None else speakers[region]
                blocks = table[row].tolist()
                self._row(made, row, region, topk[row].tolist(), int(seq_lens[row]) - 1, blocks, host_rows, said)
        return made

    def _row(
        self,
        made: Expected,
        row: int,
        region: int,
        asked: list[int],
        newest: int,
        blocks: list[int],
        host_rows: int,
        said: torch.Tensor | None,
    ) -> None:
        page, first_hot = self.shape.page, region * self.shape.stride
        columns: dict[int, list[int]] = {}
        for column, pos in enumerate(asked):
            if pos < 0:
                continue
            known = pos < min(newest, self.shape.max_len, len(blocks) * page)
            if pos == newest:
                made.index[row, column] = first_hot + self.shape.slots
            elif known and 0 <= blocks[pos // page] < host_rows // page:
                columns.setdefault(pos, []).append(column)
            else:
                made.refused += 1
                continue
            made.lengths[row] = column + 1
        tags, order = self.tags[region], self.order[region]
        slot_of = {tag: slot for slot, tag in enumerate(tags) if tag in columns}
        hits = [slot for slot in order if tags[slot] in columns]
        others = [slot for slot in order if tags[slot] not in columns]
        speaking = {pos: columns[pos][-1] if said is None else int(said[pos]) for pos in columns}
        missing = sorted((pos for pos in columns if pos not in slot_of), key=lambda pos: speaking[pos])
        whole = newest <= self.shape.slots
        loaded = missing if whole else others[: len(missing)]
        for pos, slot in zip(missing, loaded, strict=True):
            tags[slot] = pos
            slot_of[pos] = slot
            made.copies.append((blocks[pos // page] * page + pos % page, first_hot + slot))
        if not whole:
            self.order[region] = others[len(missing) :] + loaded + hits
        for pos, places in columns.items():
            made.index[row, places] = first_hot + slot_of[pos]
        made.hits += len(hits)
        made.misses += len(missing)


def broken(
    state: HotState,
    layer: int,
    topk: torch.Tensor,
    seq_lens: torch.Tensor,
    slots: torch.Tensor,
    regions: torch.Tensor,
    table: torch.Tensor,
    host: torch.Tensor,
    hot: torch.Tensor,
) -> list[str]:
    """What does not hold after resolve and copy of one layer, one line each; waits for the device.

    Judged are the regions of the batch's real rows. host, hot: int32 [rows, words] that the caller's device can read.
    """
    shape, width = state.shape, topk.shape[0]
    index = state.index[:width]
    real = (slots[:width] >= 0) & (regions[:width] >= 0) & (regions[:width] < shape.regions)
    newest = seq_lens[:width].to(torch.int64) - 1
    given = (topk >= 0) & real[:, None]
    wrong = []
    if not torch.equal(index >= 0, given):
        wrong.append("an output is -1 where a position was given, or is not where none was")
    if bool(((topk > newest[:, None]) & real[:, None]).any()):
        wrong.append("a position later than the newest was selected")
    for row in torch.nonzero(real).flatten().tolist():
        region, last = int(regions[row]), int(newest[row])
        first = region * shape.stride
        tags = state.tags[layer, region, : shape.slots].to(torch.int64)
        order = state.order[layer, region, : shape.slots].to(torch.int64)
        held = torch.nonzero(tags >= 0).flatten()
        where = f"row {row}, region {region}"
        if len(torch.unique(tags[held])) != len(held):
            wrong.append(f"{where}: a position is hot twice")
        if not torch.equal(order.sort().values, torch.arange(shape.slots, device=order.device)):
            wrong.append(f"{where}: the order is no permutation")
        if bool((tags >= last).any()):
            wrong.append(f"{where}: a position is tagged that is not older than the newest")
            continue
        if not _same(hot, first + held, host, host_row(table[row], tags[held], shape.page)):
            wrong.append(f"{where}: a hot row differs from its host row")
        wrong += _selection(index[row], topk[row], given[row], last, first, shape, tags, where)
    return wrong


def host_row(blocks: torch.Tensor, positions: torch.Tensor, page: int) -> torch.Tensor:
    """Host rows, int64, of positions of the request with these blocks."""
    positions = positions.to(torch.int64)
    return blocks.to(torch.int64)[positions // page] * page + positions % page


def _selection(
    index: torch.Tensor,
    topk: torch.Tensor,
    given: torch.Tensor,
    last: int,
    first: int,
    shape: HotShape,
    tags: torch.Tensor,
    where: str,
) -> list[str]:
    """Whether each column points into its region, at the row that holds its position."""
    slot = (index.to(torch.int64) - first)[given]
    if bool(((slot < 0) | (slot > shape.slots)).any()):
        return [f"{where}: an output points out of the region"]
    holds = torch.cat([tags, tags.new_full((1,), last)])
    if not torch.equal(holds[slot], topk[given].to(torch.int64)):
        return [f"{where}: an output points at a row that holds another position"]
    return []


def _same(a: torch.Tensor, a_rows: torch.Tensor, b: torch.Tensor, b_rows: torch.Tensor) -> bool:
    return torch.equal(a[a_rows.to(a.device)], b[b_rows.to(b.device)].to(a.device))
