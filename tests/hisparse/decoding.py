"""A small engine around the kernels: requests with blocks of a host pool, decode steps, and what every row must be.

Each layer of each request has random rows, remembered here as the truth. After each step everything that attention
would read is compared with it, the state with the oracle's, and the invariants are judged.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
from hot_kv.kernels_launch import Tuning, copy, resolve, write_newest
from hot_kv.oracle import Oracle, broken
from hot_kv.regions import RegionMap
from hot_kv.state import HITS, MISSES, REFUSED, HotShape, HotState

GARBAGE = 1_234_567


@dataclass
class Request:
    """tokens: how many have rows in the host pool; truth: int32 [layers, tokens, words]."""

    name: str
    blocks: list[int]
    truth: torch.Tensor
    recent: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return self.truth.shape[1]


class Decoding:
    """The engine. *width* is the graph's: each step runs all its rows, whatever the batch."""

    def __init__(self, shape: HotShape, blocks: int, seed: int, tuning: Tuning | None = None, bins: int = 8) -> None:
        self.shape, self.tuning = shape, tuning or Tuning(copy_programs=2, copy_rows=2)
        self.chance = random.Random(seed)
        self.numbers = torch.Generator().manual_seed(seed)
        self.state = HotState(shape, "cpu", bins)
        self.map = RegionMap(shape.regions)
        self.oracles = [Oracle(shape) for _ in range(shape.layers)]
        # Block 0 is the engine's null block: its rows are never anyone's.
        self.free = list(range(1, blocks))
        self.host = [self.rows(blocks * shape.page) for _ in range(shape.layers)]
        self.hot = [self.rows(shape.hot_rows) for _ in range(shape.layers)]
        width = shape.rows
        self.topk = torch.full((width, shape.topk), -1, dtype=torch.int32)
        self.seq_lens = torch.zeros(width, dtype=torch.int32)
        self.slots = torch.full((width,), -1, dtype=torch.int64)
        self.table = torch.zeros((width, -(-shape.max_len // shape.page)), dtype=torch.int32)
        self.requests: dict[str, Request] = {}
        self.serial = 0
        self.counted = [0, 0, 0]

    def rows(self, count: int) -> torch.Tensor:
        return torch.randint(-(2**31), 2**31 - 1, (count, self.shape.words), generator=self.numbers, dtype=torch.int32)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.shape.page)

    def add(self, tokens: int, name: str | None = None) -> Request | None:
        """A request after its prefill, on scattered blocks; None where the pool is full."""
        wanted = self.blocks_for(tokens)
        if wanted > len(self.free):
            return None
        self.serial += 1
        name = name or f"r{self.serial}"
        blocks = [self.free.pop(self.chance.randrange(len(self.free))) for _ in range(wanted)]
        truth = torch.stack([self.rows(tokens) for _ in range(self.shape.layers)])
        request = self.requests[name] = Request(name, blocks, truth)
        for layer, host in enumerate(self.host):
            host[[self.place(request, pos) for pos in range(tokens)]] = truth[layer]
        return request

    def place(self, request: Request, pos: int) -> int:
        return request.blocks[pos // self.shape.page] * self.shape.page + pos % self.shape.page

    def finish(self, name: str) -> None:
        """Finished, aborted or preempted: its blocks are anyone's."""
        self.free += self.requests.pop(name).blocks
        self.map.forget(name)

    def select(self, request: Request) -> list[int]:
        """Positions as an indexer might: mostly those of before, with holes and doubles; the newest is tokens - 1."""
        newest, width = request.tokens - 1, self.shape.topk
        pool = [pos for pos in request.recent if pos <= newest]
        picked = [
            self.chance.choice(pool) if pool and self.chance.random() < 0.6 else self.chance.randint(0, newest)
            for _ in range(width)
        ]
        kind = self.chance.random()
        if kind < 0.3:
            picked = picked[: self.chance.randint(0, width)]
        elif kind < 0.5:
            picked = [pos if self.chance.random() < 0.7 else -1 for pos in picked]
        elif kind < 0.7:
            picked = self.chance.sample(range(newest + 1), min(width, newest + 1))
        if self.chance.random() < 0.5 and picked:
            picked[self.chance.randrange(len(picked))] = newest
        request.recent = [pos for pos in picked if pos >= 0] or request.recent
        return picked + [-1] * (width - len(picked))

    def grow(self, request: Request) -> bool:
        """One more token, whose rows the step will write; False where no block is left."""
        if request.tokens >= self.shape.max_len:
            return False
        if request.tokens % self.shape.page == 0:
            if not self.free:
                return False
            request.blocks.append(self.free.pop(self.chance.randrange(len(self.free))))
        new = torch.stack([self.rows(1) for _ in range(self.shape.layers)])
        request.truth = torch.cat([request.truth, new], dim=1)
        return True

    def step(self, batch: list[Request], picked: list[list[int]] | None = None) -> None:
        """Decode one token of each, in this order, in the same buffers as before; then compare everything."""
        batch = [request for request in batch if self.grow(request)]
        placed = self.map.step([(request.name, request.tokens - 1) for request in batch])
        self.state.reset(placed.resets)
        for oracle in self.oracles:
            oracle.reset(placed.resets)
        self.state.place_rows(placed.regions)
        self.topk.fill_(-1)
        self.slots.fill_(-1)
        self.seq_lens.zero_()
        self.table.zero_()
        for row, request in enumerate(batch):
            self.topk[row] = torch.tensor(picked[row] if picked else self.select(request), dtype=torch.int32)
            self.seq_lens[row] = request.tokens
            self.slots[row] = self.place(request, request.tokens - 1)
            self.table[row, : len(request.blocks)] = torch.tensor(request.blocks, dtype=torch.int32)
        for layer in range(self.shape.layers):
            self.run_layer(layer, batch)

    def run_layer(self, layer: int, batch: list[Request]) -> None:
        state, host, hot = self.state, self.host[layer], self.hot[layer]
        newest = torch.full((self.shape.rows, self.shape.words), GARBAGE, dtype=torch.int32)
        for row, request in enumerate(batch):
            newest[row] = request.truth[layer, -1]
        state.index.fill_(GARBAGE)
        state.lengths.fill_(GARBAGE)
        others = self.others(layer, batch)
        given = (self.topk, self.seq_lens, self.slots, state.region_rows, self.table)
        write_newest(state, newest, self.slots, state.region_rows, host, hot, self.tuning)
        index, lengths = resolve(state, layer, *given, host.shape[0], self.tuning)
        copy(state, host, hot, self.tuning)
        self.compare(layer, index, lengths)
        for row, request in enumerate(batch):
            self.attend(layer, row, request, index[row])
        assert broken(state, layer, *given, host, hot) == []
        assert all(torch.equal(a, b) for a, b in zip(others, self.others(layer, batch), strict=True))

    def others(self, layer: int, batch: list[Request]) -> list[torch.Tensor]:
        """Tags, order and hot rows of the regions that are not in the batch: a step must not touch them."""
        used = {self.map.region(request.name) for request in batch}
        unused = [region for region in range(self.shape.regions) if region not in used]
        hot = self.hot[layer].view(self.shape.regions, self.shape.stride, self.shape.words)
        return [self.state.tags[layer, unused], self.state.order[layer, unused], hot[unused]]

    def compare(self, layer: int, index: torch.Tensor, lengths: torch.Tensor) -> None:
        state, oracle = self.state, self.oracles[layer]
        given = (self.topk, self.seq_lens, self.slots, state.region_rows, self.table, self.host[layer].shape[0])
        expected = oracle.step(*given, speakers=state.inverse)
        assert torch.equal(index, expected.index)
        assert torch.equal(lengths, expected.lengths)
        assert state.tags[layer, :, : self.shape.slots].tolist() == oracle.tags
        assert state.order[layer, :, : self.shape.slots].tolist() == oracle.order
        total = int(state.total)
        copies = zip(state.sorted_source[:total].tolist(), state.sorted_target[:total].tolist(), strict=True)
        assert sorted(copies) == sorted(expected.copies)
        for number, more in ((HITS, expected.hits), (MISSES, expected.misses), (REFUSED, expected.refused)):
            self.counted[number] += more
        assert state.stats.tolist() == self.counted

    def attend(self, layer: int, row: int, request: Request, index: torch.Tensor) -> None:
        """The rows that attention reads through *index* are those of the positions that were selected."""
        positions = self.topk[row].to(torch.int64)
        used = positions >= 0
        assert torch.equal(index >= 0, used)
        assert torch.equal(self.hot[layer][index[used].to(torch.int64)], request.truth[layer, positions[used]])
        newest = self.place(request, request.tokens - 1)
        assert torch.equal(self.host[layer][newest], request.truth[layer, -1])
