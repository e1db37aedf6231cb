"""An engine of vLLM 0.24.0 in this process, and what the HiSparse scripts do in it. Needs vLLM and a GPU."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

# Standard deviations as multiples of 1 / sqrt(width). With 2 for queries, few of the selected rows carry most of the
# weight, and attention's part of the hidden state is about as large as the rest: one wrong row shows.
GAINS = {"q_b_proj": 2.0, "o_proj": 2.0, "lm_head": 2.0}


@dataclass
class Inside:
    """A running engine with *llm*, its model runner and its scheduler."""

    llm: Any
    runner: Any
    scheduler: Any

    def preempted(self) -> int:
        """The engine's own count of preemptions."""
        return sum(int(one.value) for one in self.llm.get_metrics() if one.name == "vllm:num_preemptions")

    def counts(self) -> list[int]:
        """Hits, misses, refused positions and copied bytes of HiSparse since the start; waits for the GPU.

        Of layers that share a selection the hits and misses count once. Zeros without HiSparse.
        """
        hot = getattr(self.runner, "hot_kv", None)
        if hot is None:
            return [0, 0, 0, 0]
        counts = hot.state.stats.cpu()
        copied = int(counts[:, 1] @ hot.users) * hot.state.shape.row_bytes
        return [*counts[:, :3].sum(0).tolist(), copied]

    def caches(self) -> dict[str, Any]:
        """The layers that have a KV cache, by name; those of indexers have .indexer in it."""
        layers = self.runner.vllm_config.compilation_config.static_forward_context
        return {name: layer for name, layer in layers.items() if getattr(layer, "kv_cache", None) is not None}

    def forget_prefixes(self) -> None:
        """Empty the prefix cache. RuntimeError where blocks are still held."""
        for _ in range(8):
            if self.llm.reset_prefix_cache():
                return
            self.llm.llm_engine.step()
        raise RuntimeError("the prefix cache cannot be emptied")

    def stop(self) -> None:
        """Give the memory back, with the host pool."""
        self.llm.llm_engine.engine_core.shutdown()


def start(asked: dict[str, Any]) -> Inside:
    """An engine as *asked*, with random weights.

    model, kv_cache_dtype, graphs (eager or full), compile, longest, seats, tokens_a_step, sizes (of graphs), kv_bytes
    (of the GPU), blocks (a limit, or None), pool_gib (None without HiSparse) and slots.
    """
    from vllm import LLM

    attention: dict[str, Any] = {"backend": "FLASHMLA_SPARSE"}
    if asked["pool_gib"] is not None:
        attention["hisparse_config"] = {"host_pool_gib": asked["pool_gib"], "device_buffer_size": asked["slots"]}
    eager = asked["graphs"] == "eager"
    compilation: dict[str, Any] = {"mode": 0, "cudagraph_mode": "NONE"}
    if not eager:
        sizes = {"cudagraph_capture_sizes": asked["sizes"], "max_cudagraph_capture_size": max(asked["sizes"])}
        compilation = {"mode": 3 if asked["compile"] else 0, "cudagraph_mode": "FULL_DECODE_ONLY"} | sizes
    llm = LLM(
        model=asked["model"],
        load_format="dummy",
        skip_tokenizer_init=True,
        seed=0,
        kv_cache_dtype=asked["kv_cache_dtype"],
        block_size=64,
        max_model_len=asked["longest"],
        max_num_seqs=asked["seats"],
        max_num_batched_tokens=asked["tokens_a_step"],
        enable_prefix_caching=True,
        gpu_memory_utilization=0.1,  # what must be free; kv_cache_memory_bytes is what is taken
        kv_cache_memory_bytes=asked["kv_bytes"],
        num_gpu_blocks_override=asked["blocks"],
        enforce_eager=eager,
        compilation_config=compilation,
        attention_config=attention,
        disable_log_stats=False,
    )
    engine = llm.llm_engine
    inside = Inside(llm, engine.model_executor.driver_worker.model_runner, engine.engine_core.engine_core.scheduler)
    randomise(inside.runner.get_model())
    return inside


def randomise(model: Any) -> None:
    """Random weights, other ones for each name, in place: dummy weights are near zero and the same in all layers."""
    import torch

    with torch.inference_mode():
        for name, parameter in model.named_parameters():
            if not parameter.is_floating_point():
                continue
            chance = torch.Generator(device=parameter.device).manual_seed(zlib.crc32(name.encode()))
            mean, deviation = spread(name, parameter.shape)
            parameter.data.normal_(mean, deviation, generator=chance)
        for module in model.modules():
            if getattr(module, "W_UV", None) is not None:
                _absorb(module)


def spread(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Mean and standard deviation of a parameter by its name."""
    if len(shape) == 1:
        return (0.0, 0.1) if name.endswith("bias") else (1.0, 0.1)
    if "embed_tokens" in name:
        return 0.0, 1.0
    gain = next((gain for part, gain in GAINS.items() if part in name), 1.0)
    return 0.0, gain / shape[-1] ** 0.5


def _absorb(layer: Any) -> None:
    """W_UV and W_UK_T again from kv_b_proj. They are views of it in 0.24.0; if not, they are copied."""
    weight = layer.kv_b_proj.weight.data.T
    weight = weight.view(layer.kv_lora_rank, layer.num_heads, layer.qk_nope_head_dim + layer.v_head_dim)
    keys, values = weight.split([layer.qk_nope_head_dim, layer.v_head_dim], dim=-1)
    for old, new in ((layer.W_UV, values.transpose(0, 1)), (layer.W_UK_T, keys.permute(1, 2, 0))):
        if old.data_ptr() != new.data_ptr():
            old.copy_(new)


def sort_selections() -> None:
    """From now on selections are sorted by position, in engines that are made later.

    Stock's top-k gives the same positions in an order that changes from run to run, and sums are rounded by order. So
    without this even stock against itself differs, and equal bits could not be asked for.
    """
    from vllm.model_executor.layers.sparse_attn_indexer import SparseAttnIndexer

    plain = SparseAttnIndexer.forward_cuda

    def forward(self: Any, hidden_states: Any, *given: Any) -> Any:
        found = plain(self, hidden_states, *given)
        rows = self.topk_indices_buffer[: hidden_states.shape[0]]
        last = 2**31 - 1
        ordered = rows.masked_fill(rows < 0, last).sort(dim=1).values
        rows.copy_(ordered.masked_fill(ordered == last, -1))
        return found

    SparseAttnIndexer.forward_cuda = forward


def spoil_each_step(inside: Inside) -> None:
    """From now on hot rows are wrong whenever a step begins."""
    hot = inside.runner.hot_kv
    begin = hot.begin_step

    def spoiled(*given: Any) -> None:
        begin(*given)
        hot.spoil()

    hot.begin_step = spoiled
