"""A worker in miniature that runs attention layers twice: stock, with all KV in one cache, and with hot KV.

Requests, blocks, batches and selections are the same for both; what they give is compared bit by bit.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from hisparse_engine import LIMIT, SEATS, SLOTS, TOKENS, TOPK, config

HEADS, BLOCKS = 4, 40


class OracleKernels:
    """What `kernels_launch` offers, by the package's own oracle: the kernels themselves are tested against it."""

    def __init__(self, oracle: Any) -> None:
        self._module, self._oracle, self._copies = oracle, {}, []

    def reset(self, regions: list[int]) -> None:
        for one in self._oracle.values():
            one.reset(regions)

    def tuning_for(self, device: Any) -> None:
        return None

    def resolve(self, state, layer, topk, seq_lens, slots, regions, table, host_rows, tuning):
        one = self._oracle.setdefault(layer, self._module.Oracle(state.shape))
        made = one.step(topk, seq_lens, slots, regions, table, host_rows)
        state.stats[layer] += torch.tensor([made.hits, made.misses, made.refused, 0])
        self._copies = made.copies
        return made.index.to(torch.int32), made.lengths

    def copy(self, state, host, hot, tuning):
        for source, target in self._copies:
            hot[target] = host[source]

    def write_newest(self, state, rows, slots, regions, host, hot, tuning):
        shape = state.shape
        for token, (slot, region) in enumerate(zip(slots.tolist(), regions.tolist(), strict=True)):
            if slot >= 0:
                host[slot] = rows[token]
                if region < shape.regions:
                    hot[region * shape.stride + shape.slots] = rows[token]


class Request:
    def __init__(self, name: str, prompt: int, blocks: list[int]) -> None:
        self.name, self.prompt, self.blocks, self.computed = name, prompt, blocks, 0


class Worker:
    """Both engines. *fp8*: rows of 656 bytes; *selects*: for each layer, whether it has an indexer.

    ``step`` runs a batch; ``stacks`` are the layers of each engine, ``impls`` and ``caches`` are of the first layer.
    """

    def __init__(
        self,
        vllm: SimpleNamespace,
        backend: Any,
        fp8: bool,
        heads: int = HEADS,
        seed: int = 0,
        selects: tuple[bool, ...] = (True,),
    ) -> None:
        self.random, self.backend, self.fp8, self.heads = random.Random(seed), backend, fp8, heads
        torch.manual_seed(seed)
        kind = "fp8_ds_mla" if fp8 else "auto"
        size = (BLOCKS, 64, 656) if fp8 else (BLOCKS, 64, 576)
        dtype = torch.uint8 if fp8 else torch.bfloat16
        self.settings = {
            "stock": config(None, cache_config__cache_dtype=kind),
            "hot": config({"host_pool_gib": 1, "device_buffer_size": SLOTS}, cache_config__cache_dtype=kind),
        }
        self.topk = torch.full((TOKENS, TOPK), -1, dtype=torch.int32)
        self.selects = selects
        self.stacks: dict[str, list[Any]] = {name: [] for name in self.settings}
        for name, settings in self.settings.items():
            for number, indexer in enumerate(selects):
                cache, impl = torch.zeros(size, dtype=dtype), self._impl(name, kind)
                layer = SimpleNamespace(impl=impl, indexer=object() if indexer else None, kv_cache=cache)
                settings.compilation_config.static_forward_context[f"{number}.attn"] = layer
                self.stacks[name].append(layer)
        self.impls = {name: stack[0].impl for name, stack in self.stacks.items()}
        self.caches = {name: stack[0].kv_cache for name, stack in self.stacks.items()}
        self.builders = {name: self._builder(name) for name in self.settings}
        kernels = OracleKernels(vllm.hot("oracle"))
        self.hot = vllm.hot("manager").create(self.settings["hot"], torch.device("cpu"), kernels)
        reset = self.hot.state.reset
        # The oracle keeps tags of its own, so it is told of what the state is told.
        self.hot.state.reset = lambda regions: (reset(regions), kernels.reset(regions))
        self.free = list(range(1, BLOCKS))
        self.random.shuffle(self.free)
        self.running: list[Request] = []
        self.news: list[str] = []
        self.resumed: list[str] = []
        self.finished: list[str] = []

    def _impl(self, name: str, kind: str) -> Any:
        impl = object.__new__(self.backend.FlashMLASparseImpl)
        impl.num_heads, impl.kv_cache_dtype, impl.kv_lora_rank = self.heads, kind, 512
        impl.softmax_scale, impl.prefill_padding, impl.fp8_decode_padded_heads = 1.0, self.heads, self.heads
        impl.topk_indices_buffer = self.topk
        impl.prefill_bf16_workspace = torch.zeros(5 * LIMIT, 576, dtype=torch.bfloat16)
        return impl

    def _builder(self, name: str) -> Any:
        builder = object.__new__(self.backend.FlashMLASparseMetadataBuilder)
        builder.vllm_config, builder.layer_names, builder.device = self.settings[name], ["0.attn"], torch.device("cpu")
        builder.reorder_batch_threshold, builder.num_heads, builder.use_fp8_kv_cache = 1, self.heads, self.fp8
        builder.fp8_decode_padded_heads, builder.topk_tokens = self.heads, TOPK
        builder.kv_cache_spec = SimpleNamespace(block_size=64)
        builder.topk_tokens_tensor = torch.full((SEATS,), TOPK, dtype=torch.int32)
        builder.max_model_len_tensor = torch.full((SEATS,), LIMIT, dtype=torch.int32)
        builder.dummy_block_table = torch.zeros((SEATS, 1), dtype=torch.int32)
        builder.req_id_per_token_buffer = torch.zeros(TOKENS, dtype=torch.int32)
        return builder

    def admit(self, name: str, prompt: int, resumed: bool = False) -> Request:
        """A request that was never here, or was preempted: its blocks are others now."""
        blocks = [self.free.pop(0) for _ in range(-(-(prompt + 40) // 64))]
        request = Request(name, prompt, blocks)
        self.running.append(request)
        (self.resumed if resumed else self.news).append(name)
        return request

    def leave(self, request: Request, finished: bool = True) -> None:
        """Finished or aborted; or, with *finished* false, preempted."""
        self.running.remove(request)
        self.free.extend(request.blocks)
        self.random.shuffle(self.free)
        if finished:
            self.finished.append(request.name)

    def live(self, days: int) -> Iterator[dict[str, torch.Tensor]]:
        """Steps of random days: prompts come in parts, decodes run beside them, requests finish or are preempted."""
        names = iter(f"r{number}" for number in range(1000))
        for _ in range(days):
            while len(self.running) < 3:
                self.admit(next(names), self.random.randint(1, 80))
            batch = {}
            for request in self.running:
                rest = request.prompt - request.computed
                batch[request.name] = min(rest, self.random.randint(1, 30)) if rest > 0 else 1
            yield self.step(batch)
            for request in list(self.running):
                if request.computed >= request.prompt + self.random.randint(1, 12):
                    self.leave(request, finished=self.random.random() < 0.7)

    def step(self, tokens: dict[str, int], pad: int = 0) -> dict[str, torch.Tensor]:
        """Run a batch: tokens of each request, the others rest. Decodes come first. *pad*: rows as in a full graph."""
        batch = sorted((r for r in self.running if r.name in tokens), key=lambda r: tokens[r.name])
        common, numbers = self._common(batch, tokens, pad)
        self._place(batch, tokens)
        total = common.num_actual_tokens
        metadata = {name: self.builders[name].build(0, common) for name in self.stacks}
        found: dict[str, list[torch.Tensor]] = {name: [] for name in self.stacks}
        for number, selects in enumerate(self.selects):
            if selects or number == 0:
                self._select(batch, tokens)
            kv, rope, q = torch.randn(total, 512), torch.randn(total, 1, 64), torch.randn(total, self.heads, 576)
            for name, stack in self.stacks.items():
                impl, cache = stack[number].impl, stack[number].kv_cache
                impl.do_kv_cache_update(kv, rope, cache, common.slot_mapping, impl.kv_cache_dtype, None)
                out, _ = impl.forward_mqa(q.to(torch.bfloat16), cache, metadata[name], None)
                found[name].append(out[:numbers])
        for request in batch:
            request.computed += tokens[request.name]
        return {name: torch.stack(outs) for name, outs in found.items()}

    def _place(self, batch: list[Request], tokens: dict[str, int]) -> None:
        cached = SimpleNamespace(resumed_req_ids=set(self.resumed))
        output = SimpleNamespace(
            finished_req_ids=set(self.finished),
            scheduled_new_reqs=[SimpleNamespace(req_id=name) for name in self.news],
            scheduled_cached_reqs=cached,
            total_num_scheduled_tokens=sum(tokens[request.name] for request in batch),
        )
        computed = [request.computed for request in batch]
        names = [request.name for request in batch]
        self.hot.begin_step(
            output, SimpleNamespace(num_computed_tokens_cpu=computed, req_ids=names, num_reqs=len(names))
        )
        self.finished, self.news, self.resumed = [], [], []

    def _common(self, batch: list[Request], tokens: dict[str, int], pad: int) -> tuple[SimpleNamespace, int]:
        counts = [tokens[request.name] for request in batch]
        width = LIMIT // 64
        table = torch.zeros((len(batch) + pad, width), dtype=torch.int32)
        slots: list[int] = []
        for row, request in enumerate(batch):
            table[row, : len(request.blocks)] = torch.tensor(request.blocks)
            for position in range(request.computed, request.computed + tokens[request.name]):
                slots.append(request.blocks[position // 64] * 64 + position % 64)
        starts = [0]
        for count in counts:
            starts.append(starts[-1] + count)
        starts += [starts[-1]] * pad
        lengths = [r.computed + tokens[r.name] for r in batch] + [0] * pad
        return SimpleNamespace(
            num_reqs=len(batch) + pad,
            num_actual_tokens=len(slots) + pad,
            max_query_len=max(counts, default=1),
            max_seq_len=max(lengths),
            query_start_loc=torch.tensor(starts, dtype=torch.int32),
            query_start_loc_cpu=torch.tensor(starts, dtype=torch.int32),
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            seq_lens_cpu_upper_bound=torch.tensor(lengths, dtype=torch.int32),
            slot_mapping=torch.tensor(slots + [-1] * pad, dtype=torch.int64),
            block_table_tensor=table,
        ), len(slots)

    def _select(self, batch: list[Request], tokens: dict[str, int]) -> None:
        """As the indexer: positions up to the token's own, most of them the same as before, with gaps and -1."""
        self.topk.fill_(-1)
        token = 0
        for request in batch:
            for position in range(request.computed, request.computed + tokens[request.name]):
                near = list(range(max(0, position - 5), position + 1))
                known = sorted(set(near + self.random.sample(range(position + 1), min(position + 1, 4))))
                chosen = self.random.sample(known, min(len(known), TOPK - self.random.randint(0, 2)))
                self.topk[token, : len(chosen)] = torch.tensor(chosen, dtype=torch.int32)
                token += 1
