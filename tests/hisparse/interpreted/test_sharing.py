"""Layers that share a selection: one resolve, then a copy for each, between its own pool and its own hot buffer."""

from __future__ import annotations

from itertools import chain

import torch
from decoding import Decoding, Request, live
from hot_kv.kernels_launch import Tuning, copy, write_newest
from hot_kv.oracle import broken
from hot_kv.state import HotShape

SHAPE = HotShape(layers=2, regions=3, slots=12, topk=8, max_len=96, row_bytes=656, rows=4, page=16)
FOLLOWERS = 2  # of each selection


class Sharing(Decoding):
    """More layers for each selection, with rows of their own; what they hold is judged by the selection's tags."""

    def __init__(self) -> None:
        super().__init__(SHAPE, blocks=14, seed=5, tuning=Tuning(copy_programs=2, copy_rows=4))
        self.pools = [[self.rows(14 * SHAPE.page) for _ in range(FOLLOWERS)] for _ in range(SHAPE.layers)]
        self.buffers = [[self.rows(SHAPE.hot_rows) for _ in range(FOLLOWERS)] for _ in range(SHAPE.layers)]
        self.judged = 0

    def add(self, tokens: int, name: str | None = None) -> Request | None:
        request = super().add(tokens, name)
        for pool in chain(*self.pools) if request else ():
            places = torch.tensor([self.place(request, pos) for pos in range(tokens)])
            pool[places] = self.rows(tokens)
        return request

    def run_layer(self, layer: int, batch: list[Request]) -> None:
        super().run_layer(layer, batch)
        state, regions = self.state, self.state.region_rows
        for pool, buffer in zip(self.pools[layer], self.buffers[layer], strict=True):
            newest = self.rows(SHAPE.rows)
            write_newest(state, newest, self.slots, regions, pool, buffer, self.tuning)
            copy(state, pool, buffer, self.tuning)
            assert self.faults(layer, pool, buffer) == []
            for row in range(len(batch)):
                self.own(row, newest[row], pool, buffer)

    def faults(self, layer: int, pool: torch.Tensor, buffer: torch.Tensor) -> list[str]:
        given = (self.topk, self.seq_lens, self.slots, self.state.region_rows, self.table)
        return broken(self.state, layer, *given, pool, buffer)

    def own(self, row: int, newest: torch.Tensor, pool: torch.Tensor, buffer: torch.Tensor) -> None:
        """What a layer reads through the shared index is what its own pool has."""
        asked = self.topk[row][self.topk[row] >= 0].to(torch.int64)
        index = self.state.index[row]
        places = self.table[row].to(torch.int64)[asked // SHAPE.page] * SHAPE.page + asked % SHAPE.page
        assert torch.equal(buffer[index[index >= 0].to(torch.int64)], pool[places])
        assert torch.equal(pool[self.slots[row]], newest)
        self.judged += len(asked)


def test_each_layer_of_a_selection_gets_its_own_rows() -> None:
    engine = Sharing()
    live(engine, 15)
    assert engine.judged > 100


def test_a_row_that_only_one_layer_has_wrong_is_found() -> None:
    engine = Sharing()
    request = engine.add(40)
    for _ in range(3):
        engine.step([request])
    first, second = zip(engine.pools[1], engine.buffers[1], strict=True)
    second[1].add_(1)
    assert engine.faults(1, *first) == []
    assert any("a hot row differs from its host row" in fault for fault in engine.faults(1, *second))
