"""A bench for the real `DeepseekSparseAttnBackend.forward_decode` and the real lookup that it calls, on the CPU.

Replaced are the Triton kernel of the lookup (by one that reads row by row, as the grid does) and the attention kernels.
Slots are drawn so that each belongs to one request: attention over a foreign slot shows in the output.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from graftwork.harness.isolate import load_class, load_module, read_engine_file, stub, stubbed

torch.set_num_threads(1)

BACKEND = "sglang/srt/layers/attention/dsa_backend.py"
LOOKUP = ("sglang/kernels/ops/attention/dsa/transform_index.py", "sglang/srt/layers/attention/dsa/transform_index.py")
TOPK, HEADS, DIM, V_DIM = 2048, 2, 8, 6


@dataclass(frozen=True)
class Batch:
    """A decode batch of the draft: *requests* planned rows, *padded* rows of the query.

    *seeded*: top-k comes from the step before, one row for each request; else from the indexer, padded with -1.
    """

    requests: int
    padded: int
    seeded: bool = False
    impl: str = "tilelang"
    seed: int = 0


@dataclass
class Inputs:
    """``chosen[r]`` are the positions that request r attends to, ``context[r]`` its keys, (length, DIM)."""

    q: Any
    topk: Any
    table: Any
    cache: Any
    chosen: list[Any] = field(default_factory=list)
    context: list[Any] = field(default_factory=list)


@dataclass
class Result:
    """The attention's output, the slots that it was given, and the inputs."""

    out: Any
    slots: Any
    inputs: Inputs


def make_inputs(batch: Batch) -> Inputs:
    """Random tensors; the slots of all requests are one shuffled range, slot 0 belongs to nobody."""
    rand = torch.Generator().manual_seed(batch.seed)
    lengths = [int(torch.randint(3, 9, (1,), generator=rand)) for _ in range(batch.requests)]
    slots = torch.randperm(sum(lengths), generator=rand) + 1
    width, rows = max(lengths, default=1), batch.requests if batch.seeded else batch.padded
    inputs = Inputs(
        q=torch.randn(batch.padded, HEADS * DIM, generator=rand),
        topk=torch.full((rows, TOPK), -1, dtype=torch.int32),
        table=torch.zeros(batch.requests, width, dtype=torch.int32),
        cache=torch.randn(len(slots) + 1, DIM, generator=rand),
    )
    for request, length in enumerate(lengths):
        own, slots = slots[:length], slots[length:]
        inputs.table[request, :length] = own
        count = int(torch.randint(1, length + 1, (1,), generator=rand))
        chosen = torch.randperm(length, generator=rand)[:count]
        inputs.topk[request, :count] = chosen
        inputs.chosen.append(chosen)
        inputs.context.append(inputs.cache[own])
    return inputs


class Kernel:
    """Stands for a kernel of the lookup: program b reads row b of the page table, and no other."""

    def __init__(self, _: Any) -> None:
        self.grid: tuple[int, ...] = ()

    def __getitem__(self, grid: tuple[int, ...]) -> Kernel:
        self.grid = grid
        return self

    def __call__(self, table: Any, topk: Any, result: Any, *_: Any, **__: Any) -> None:
        for row in range(self.grid[0]):
            if row >= table.shape[0]:
                raise IndexError(f"program {row} reads beyond the {table.shape[0]} rows of the page table")
            picked = topk[row].long()
            result[row] = torch.where(picked >= 0, table[row, picked.clamp(min=0)], torch.tensor(-1)).int()


def attend(q: Any, cache: Any, slots: Any) -> Any:
    """Sparse attention of q (rows, HEADS, DIM) over *slots* (rows, topk); a row without slots gives zeros."""
    out = torch.zeros(q.shape[0], HEADS, V_DIM)
    for row in range(q.shape[0]):
        keys = cache[slots[row][slots[row] >= 0].long()]
        if len(keys):
            out[row] = torch.softmax(q[row] @ keys.T, -1) @ keys[:, :V_DIM]
    return out


class Bench:
    """One tree's `forward_decode`."""

    def __init__(self, tree: Path) -> None:
        self.seen: list[Any] = []
        with self._stubs():
            lookup = load_module(read_engine_file(tree, *LOOKUP), "dsa_page_table_rows_lookup")
        namespace = {
            **{name: getattr(typing, name) for name in ("Any", "List", "Optional", "Tuple")},
            **{"torch": torch, "_is_hip": True, "envs": Off()},
            "transform_index_page_table_decode": lookup.transform_index_page_table_decode,
            "concat_mla_absorb_q_general": lambda q_nope, q_rope: torch.cat([q_nope, q_rope], -1),
        }
        members = ["forward_decode", "_pad_topk_indices", "_forward_tilelang"]
        self.backend_class = load_class(
            read_engine_file(tree, BACKEND), "DeepseekSparseAttnBackend", members, namespace
        )

    def run(self, batch: Batch) -> Result:
        """Call the tree's `forward_decode` for *batch*."""
        return self.call(make_inputs(batch), batch.impl)

    def call(self, inputs: Inputs, impl: str = "tilelang") -> Result:
        backend, self.seen = self.backend_class(), []
        backend.forward_metadata = SimpleNamespace(page_table_1=inputs.table, cache_seqlens_int32=None)
        backend.token_to_kv_pool = SimpleNamespace(get_key_buffer=lambda layer_id: inputs.cache)
        backend.dsa_decode_impl, backend.hisparse_coordinator, backend.use_fused_topk = impl, None, False
        backend._forward_aiter = self._aiter
        # A mixin of 0.5.20 and later; without k-pool it keeps the implementation that was asked for.
        backend._resolve_kpool_tail_backend = lambda topk, impl: impl
        backend._check_kpool_tail_backend = lambda *_: None
        layer = SimpleNamespace(
            is_cross_attention=False, layer_id=0, tp_q_head_num=HEADS, head_dim=DIM, v_head_dim=V_DIM, scaling=1.0
        )
        forward_batch = SimpleNamespace(batch_size=inputs.q.shape[0])
        with self._stubs():
            out = backend.forward_decode(inputs.q, None, None, layer, forward_batch, topk_indices=inputs.topk)
        return Result(out.reshape(-1, HEADS, V_DIM), self.seen[0], inputs)

    def _aiter(self, *, q_all: Any, kv_cache: Any, page_table_1: Any, bs: int, **_: Any) -> Any:
        # The real one writes one count for each row of the table into kv_indptr[1 : bs + 1].
        assert page_table_1.shape[0] == bs
        return self._kernel(q=q_all, kv=kv_cache, indices=page_table_1.unsqueeze(1))

    def _kernel(self, *, q: Any, kv: Any, indices: Any, **_: Any) -> Any:
        self.seen.append(indices.squeeze(1))
        return attend(q, kv, indices.squeeze(1))

    @contextmanager
    def _stubs(self) -> Iterator[None]:
        kernels = {"tilelang_sparse_fwd": lambda **given: self._kernel(**given).unsqueeze(0)}
        language = stub("triton.language", constexpr=object)
        with stubbed(
            stub("triton", jit=lambda *given, **_: Kernel(given) if given else Kernel, language=language),
            language,
            stub("sglang.srt.layers.attention.dsa.tilelang_kernel", **kernels),
            stub("sglang.kernels.ops.attention.dsa.tilelang_kernel", **kernels),
        ):
            yield


class Off:
    """Stands for `sglang.srt.environ.envs`: every switch is off, fused top-k too."""

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(get=lambda: False)


def check(result: Result) -> None:
    """Judge a result without the page table: each request over its own keys, nothing for the padding."""
    inputs, requests = result.inputs, len(result.inputs.context)
    assert result.slots.shape == (inputs.q.shape[0], TOPK), "one row of slots for each row of the query"
    assert result.slots.dtype == torch.int32
    assert bool((result.slots[requests:] == -1).all()), "padded rows look nothing up"
    q = inputs.q.view(-1, HEADS, DIM)
    for request in range(requests):
        keys = inputs.context[request][inputs.chosen[request]]
        want = torch.softmax(q[request] @ keys.T, -1) @ keys[:, :V_DIM]
        assert torch.allclose(result.out[request], want, atol=1e-5), f"request {request} attends to foreign slots"
