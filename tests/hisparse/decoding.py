"""A small engine around the kernels: requests with blocks of a host pool, decode steps, and what every row must be.

Each layer of each request has random rows, remembered here as the truth. After each step everything that attention
would read is compared with it, the state with the oracle's, and the invariants are judged.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from hot_kv.kernels_launch import Tuning, copy, resolve, tuning_for, write_newest
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
    """The engine. Each step runs all rows of the shape, whatever the batch; on a GPU, as one captured graph a layer."""

    def __init__(
        self,
        shape: HotShape,
        blocks: int,
        seed: int,
        tuning: Tuning | None = None,
        bins: int = 8,
        device: str = "cpu",
        pinned: Callable[[torch.Tensor], torch.Tensor] = lambda rows: rows,
    ) -> None:
        """*pinned* moves a tensor into host memory that the device reads, and returns the device's view of it."""
        self.shape, self.device = shape, torch.device(device)
        self.tuning = tuning or tuning_for(self.device)
        self.chance = random.Random(seed)
        self.numbers = torch.Generator().manual_seed(seed)
        self.state = HotState(shape, device, bins)
        self.map = RegionMap(shape.regions)
        self.oracles = [Oracle(shape) for _ in range(shape.layers)]
        # Block 0 is the engine's null block: its rows are never anyone's.
        self.free = list(range(1, blocks))
        self.host = [pinned(self.rows(blocks * shape.page)) for _ in range(shape.layers)]
        self.hot = [self.rows(shape.hot_rows).to(device) for _ in range(shape.layers)]
        width = shape.rows
        self.topk = torch.full((width, shape.topk), -1, dtype=torch.int32, device=device)
        self.seq_lens = torch.zeros(width, dtype=torch.int32, device=device)
        self.slots = torch.full((width,), -1, dtype=torch.int64, device=device)
        self.table = torch.zeros((width, -(-shape.max_len // shape.page)), dtype=torch.int32, device=device)
        self.newest = torch.zeros((width, shape.words), dtype=torch.int32, device=device)
        self.requests: dict[str, Request] = {}
        self.serial = 0
        self.each = [[0, 0, 0] for _ in range(shape.layers)]
        self.launches = [self.capture(layer) for layer in range(shape.layers)]

    @property
    def counted(self) -> list[int]:
        """Hits, misses and refused positions of all layers."""
        return [sum(counts) for counts in zip(*self.each, strict=True)]

    def capture(self, layer: int) -> Callable[[], None]:
        """One layer's launches, as a graph where there is a device; compiled before, on a batch of padding."""
        host, hot, regions = self.host[layer], self.hot[layer], self.state.region_rows

        def launch() -> None:
            write_newest(self.state, self.newest, self.slots, regions, host, hot, self.tuning)
            given = (self.topk, self.seq_lens, self.slots, regions, self.table)
            resolve(self.state, layer, *given, host.shape[0], self.tuning)
            copy(self.state, host, hot, self.tuning)

        if self.device.type != "cuda":
            return launch
        launch()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch()
        return graph.replay

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
            places = torch.tensor([self.place(request, pos) for pos in range(tokens)], dtype=torch.int64)
            host[places.to(self.device)] = truth[layer].to(self.device)
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
            chosen = picked[row] if picked else self.select(request)
            self.topk[row].copy_(torch.tensor(chosen, dtype=torch.int32))
            self.seq_lens[row] = request.tokens
            self.slots[row] = self.place(request, request.tokens - 1)
            self.table[row, : len(request.blocks)].copy_(torch.tensor(request.blocks, dtype=torch.int32))
        for layer in range(self.shape.layers):
            self.run_layer(layer, batch)

    def run_layer(self, layer: int, batch: list[Request]) -> None:
        state, host, hot = self.state, self.host[layer], self.hot[layer]
        self.newest.fill_(GARBAGE)
        for row, request in enumerate(batch):
            self.newest[row].copy_(request.truth[layer, -1])
        state.index.fill_(GARBAGE)
        state.lengths.fill_(GARBAGE)
        others = self.others(layer, batch)
        self.launches[layer]()
        self.compare(layer)
        for row, request in enumerate(batch):
            self.attend(layer, row, request)
        given = (self.topk, self.seq_lens, self.slots, state.region_rows, self.table)
        assert broken(state, layer, *given, host, hot) == []
        assert all(torch.equal(a, b) for a, b in zip(others, self.others(layer, batch), strict=True))

    def others(self, layer: int, batch: list[Request]) -> list[torch.Tensor]:
        """Tags, order and hot rows of the regions that are not in the batch: a step must not touch them."""
        used = {self.map.region(request.name) for request in batch}
        unused = [region for region in range(self.shape.regions) if region not in used]
        hot = self.hot[layer].view(self.shape.regions, self.shape.stride, self.shape.words)
        return [self.state.tags[layer, unused], self.state.order[layer, unused], hot[unused]]

    def compare(self, layer: int) -> None:
        state, oracle = self.state, self.oracles[layer]
        given = (self.topk, self.seq_lens, self.slots, state.region_rows, self.table)
        rows = self.host[layer].shape[0]
        expected = oracle.step(*(tensor.cpu() for tensor in given), rows, speakers=state.inverse.cpu())
        assert torch.equal(state.index.cpu(), expected.index)
        assert torch.equal(state.lengths.cpu(), expected.lengths)
        assert state.tags[layer, :, : self.shape.slots].tolist() == oracle.tags
        assert state.order[layer, :, : self.shape.slots].tolist() == oracle.order
        assert sorted(zip(*self.copies(), strict=True)) == sorted(expected.copies)
        for number, more in ((HITS, expected.hits), (MISSES, expected.misses), (REFUSED, expected.refused)):
            self.each[layer][number] += more
        assert state.stats.tolist() == [[*counts, 0] for counts in self.each]

    def copies(self) -> tuple[list[int], list[int]]:
        """Host rows and hot rows of the last selection's misses, in the order in which they are copied."""
        state, total = self.state, int(self.state.ends[-1])
        listed = torch.arange(self.shape.topk, device=self.device) < state.count[:, None]
        few = total <= self.tuning.few
        assert not few or total == int(listed.sum())
        source, target = (
            rows[0][listed] if few else rows[1].flatten()[:total] for rows in (state.source, state.target)
        )
        return source.tolist(), target.tolist()

    def attend(self, layer: int, row: int, request: Request) -> None:
        """The rows that attention reads through the index are those of the positions that were selected."""
        positions = self.topk[row].to(torch.int64).cpu()
        index, used = self.state.index[row], positions >= 0
        assert torch.equal(index.cpu() >= 0, used)
        read = self.hot[layer][index[index >= 0].to(torch.int64)].cpu()
        assert torch.equal(read, request.truth[layer, positions[used]])
        newest = self.place(request, request.tokens - 1)
        assert torch.equal(self.host[layer][newest].cpu(), request.truth[layer, -1])


def live(engine: Decoding, steps: int) -> None:
    """Random lives of requests: they finish, are preempted and resume, come again under one name, restart, pause."""
    chance, shape = engine.chance, engine.shape
    lengths = [1, shape.topk, shape.slots, shape.slots + 1, shape.max_len // 2]
    for number in range(steps):
        running = list(engine.requests.values())
        if len(running) < shape.regions or chance.random() < 0.1:
            engine.add(min(chance.choice(lengths), shape.max_len // 2))
        if running and chance.random() < 0.12:
            engine.finish(chance.choice(running).name)
        if engine.requests and chance.random() < 0.12:  # preempted, then resumed, or aborted and added again
            again = chance.choice(list(engine.requests.values()))
            engine.finish(again.name)
            engine.add(chance.randint(1, again.tokens), again.name)
        if engine.requests and chance.random() < 0.08:
            restart(engine, chance.choice(list(engine.requests.values())))
        batch = list(engine.requests.values())
        chance.shuffle(batch)
        engine.step(batch[: chance.randint(0 if number % 9 == 0 else 1, shape.regions)])


def restart(engine: Decoding, request: Request) -> None:
    """A load failed: tokens from some position on are computed again, and only the computed tokens say so."""
    if request.tokens < 3:
        return
    kept = engine.chance.randint(1, request.tokens - 2)
    blocks = engine.blocks_for(kept)
    engine.free += request.blocks[blocks:]
    del request.blocks[blocks:]
    request.truth = request.truth[:, :kept]
    request.recent = [pos for pos in request.recent if pos < kept]


def first_of_blocks(
    state: HotState, host: torch.Tensor, hot: torch.Tensor, table: list[int], region: int
) -> torch.Tensor:
    """Hot rows, int64, of one request that asks for the first token of every block, its newest the last block's.

    The newest row is written with 77 in every word.
    """
    page, device = state.shape.page, state.device
    tuning = tuning_for(device)

    def given(values: list[list[int]], dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    last = len(table) - 1
    topk = given([[block * page for block in range(len(table))]])
    seq_lens, regions = given([[last * page + 1]])[0], given([[region]])[0]
    slots = given([[table[last] * page]], torch.int64)[0]
    newest = torch.full((1, state.shape.words), 77, dtype=torch.int32, device=device)
    write_newest(state, newest, slots, regions, host, hot, tuning)
    index, _ = resolve(state, 0, topk, seq_lens, slots, regions, given([table]), host.shape[0], tuning)
    copy(state, host, hot, tuning)
    return index[0].to(torch.int64)
