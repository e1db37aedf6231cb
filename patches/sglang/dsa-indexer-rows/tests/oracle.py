"""Batches, their tensors, and what the indexer must answer: written without looking at the code under test.

Keys are scattered into shuffled pages; the stand-in kernel reads them through the page table, the oracle does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

HEADS, DIM, TOPK, KEYS = 8, 128, 4, 9


@dataclass(frozen=True)
class Batch:
    """One call of the indexer: *padded* rows of q, and the real rows of each request in *extend*."""

    padded: int
    extend: tuple[int, ...]
    mode: str = "draft-extend"
    page: int = 1
    init_tokens: int = 0
    local_tokens: int = 0
    seed: int = 0

    @property
    def real(self) -> int:
        return sum(self.extend)

    @property
    def rows(self) -> int:
        return min(self.real, self.padded)


@dataclass
class Inputs:
    """Tensors of a batch; ``keys`` (real, KEYS, DIM) holds the keys that each real row's page table leads to."""

    q: Any
    weights: Any
    keys: Any
    lengths: Any
    table: Any
    buffer: Any


def make_inputs(batch: Batch) -> Inputs:
    """Random tensors: each request owns shuffled pages, its rows see one key more each, its last row sees them all."""
    rand = torch.Generator().manual_seed(batch.seed)
    per_request = math.ceil(KEYS / batch.page)
    pages = torch.randperm(max(1, len(batch.extend)) * per_request + 2, generator=rand)
    buffer = torch.zeros(len(pages), batch.page, DIM + 4)
    keys, lengths, table = [], [], []
    for request, count in enumerate(batch.extend):
        own = torch.randn(KEYS, DIM, generator=rand)
        mine = pages[request * per_request : (request + 1) * per_request]
        for position in range(KEYS):
            buffer[mine[position // batch.page], position % batch.page, :DIM] = own[position]
        last = int(torch.randint(max(count, 1), KEYS + 1, (1,), generator=rand))
        for row in range(count):
            keys.append(own)
            lengths.append(max(0, last - count + 1 + row))
            table.append(mine)
    shape = (batch.real, KEYS, DIM)
    return Inputs(
        q=torch.randn(batch.padded, HEADS, DIM, generator=rand),
        weights=torch.rand(batch.padded, HEADS, 1, generator=rand) + 0.1,
        keys=torch.stack(keys) if keys else torch.zeros(shape),
        lengths=torch.tensor(lengths, dtype=torch.int32),
        table=torch.stack(table).to(torch.int32) if table else torch.zeros((0, per_request), dtype=torch.int32),
        buffer=buffer.view(len(pages), batch.page * (DIM + 4)),
    )


def reference_logits(q: Any, kv: Any, weights: Any, out: Any, lengths: Any, table: Any) -> None:
    """What the logits kernels compute, row by row of q; a row without a length counts as empty.

    Columns past a row's length hold rubbish that would win: cleaning them is the task of top-k, by its lengths.

    q: (rows, 1, heads, dim); kv: (pages, block, 1, dim + scale); weights: (rows, heads); out: (rows, width).
    """
    block, lengths = kv.shape[1], lengths.reshape(-1)
    out.fill_(1e30)
    for row in range(min(q.shape[0], lengths.shape[0], table.shape[0])):
        seen = torch.arange(min(int(lengths[row]), out.shape[1]))
        keys = kv[table[row, seen // block].long(), seen % block, 0, :DIM]
        out[row, : len(seen)] = (torch.relu(keys @ q[row, 0].T) * weights[row]).sum(1)


def scores_of_row(batch: Batch, inputs: Inputs, row: int) -> Any:
    """The oracle's scores of one real row over all its keys: (KEYS,), -inf where the row may not look."""
    scores = torch.full((KEYS,), float("-inf"), dtype=torch.float64)
    seen = int(inputs.lengths[row])
    q, keys = inputs.q[row].double(), inputs.keys[row].double()
    for position in range(seen):
        dots = [max(0.0, float(torch.dot(q[head], keys[position]))) for head in range(HEADS)]
        scores[position] = sum(float(w) * dot for w, dot in zip(inputs.weights[row, :, 0], dots, strict=True))
    forced = [*range(batch.init_tokens), *(max(0, seen - 1 - back) for back in range(batch.local_tokens))]
    for position in forced:
        if position < seen:
            scores[position] = float("inf")
    return scores


def check(batch: Batch, result: Any) -> None:
    """Judge a result against the oracle. Ties may fall either way, so scores are compared and not positions."""
    out = result.out
    assert out.shape == (batch.padded, TOPK), "the caller gets one row for each row of q"
    assert out.dtype == torch.int32
    for row in range(batch.rows):
        seen = int(result.inputs.lengths[row])
        chosen = [position for position in out[row].tolist() if position != -1]
        assert len(chosen) == min(seen, TOPK) == len(set(chosen)), f"row {row}: {chosen} of {seen} keys"
        assert all(0 <= position < seen for position in chosen), f"row {row}: {chosen} of {seen} keys"
        scores = scores_of_row(batch, result.inputs, row)
        got = scores[torch.tensor(chosen, dtype=torch.long)].sort(descending=True).values
        best = scores.sort(descending=True).values[: len(chosen)]
        assert torch.allclose(got, best, rtol=1e-4), f"row {row}: scores {got.tolist()}, best are {best.tolist()}"
    assert bool((out[batch.rows :] == -1).all()), "restored rows select nothing"
