"""The settings of hot KV, and the one place that says what it does not support and why."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .state import INT16

TIMEOUT = "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS"
# Unregistering hundreds of GiB takes minutes, and a process that is killed meanwhile cannot be reaped.
SHUTDOWN_SECONDS = 600
GRAPHS = ("NONE", "PIECEWISE", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
CACHES = ("auto", "bfloat16", "fp8", "fp8_ds_mla")
_KEYS = ("host_pool_gib", "device_buffer_size")


@dataclass(frozen=True)
class HotKVConfig:
    """pool_bytes: host memory of one rank for MLA KV; slots: KV rows of a request that can be on the GPU at once."""

    pool_bytes: int
    slots: int


def active(vllm_config: Any) -> bool:
    """Whether ``attention_config.hisparse_config`` was given."""
    return vllm_config.attention_config.hisparse_config is not None


def settings(vllm_config: Any) -> HotKVConfig:
    """The settings of an engine that has hot KV."""
    given = vllm_config.attention_config.hisparse_config
    return parse(given, vllm_config.model_config.hf_config.index_topk)


def parse(given: Mapping[str, Any], topk: int) -> HotKVConfig:
    """Check the keys of ``hisparse_config``; *topk* is the model's index_topk. ValueError names what is wrong."""
    if unknown := sorted(set(given) - set(_KEYS)):
        raise ValueError(f"hisparse_config: unknown {', '.join(unknown)}; it has {' and '.join(_KEYS)}")
    pool, slots = given.get("host_pool_gib"), given.get("device_buffer_size")
    if slots is None:
        slots = 2 * topk
    if isinstance(pool, bool) or not isinstance(pool, (int, float)) or not 0 < pool < math.inf:
        raise ValueError(f"hisparse_config.host_pool_gib must be GiB of host memory for each rank, not {pool!r}")
    if isinstance(slots, bool) or not isinstance(slots, int) or not topk <= slots <= INT16:
        wanted = f"index_topk, {topk}, to {INT16}"
        raise ValueError(f"hisparse_config.device_buffer_size must be {wanted}, not {slots!r}")
    return HotKVConfig(int(pool * 2**30), slots)


def check(vllm_config: Any) -> None:
    """ValueError, with every reason, where hot KV is asked for and cannot be had. Else the time to stop is raised.

    A worker that is killed while its pool is unregistered stays in the kernel, so the engine must wait for it.
    """
    if not active(vllm_config) or vllm_config.model_config is None:
        return
    topk = getattr(vllm_config.model_config.hf_config, "index_topk", None)
    if topk is None:
        raise ValueError("hisparse_config: the model has no index_topk, so it attends to all tokens, not to some")
    parse(vllm_config.attention_config.hisparse_config, topk)
    if reasons := unsupported(vllm_config):
        raise ValueError(f"hisparse_config is not supported here: {'; '.join(reasons)}")
    os.environ.setdefault(TIMEOUT, str(SHUTDOWN_SECONDS))
    if vllm_config.shutdown_timeout == 0:
        vllm_config.shutdown_timeout = SHUTDOWN_SECONDS


def unsupported(vllm_config: Any) -> list[str]:
    """What of an engine's configuration hot KV does not support, one reason each."""
    parallel, model, cache = vllm_config.parallel_config, vllm_config.model_config, vllm_config.cache_config
    backend = vllm_config.attention_config.backend
    graphs = vllm_config.compilation_config.cudagraph_mode
    found = {
        "DeepSeek-V4 keeps several kinds of KV blocks": model.hf_config.model_type == "deepseek_v4",
        "pipeline parallelism is not": parallel.pipeline_parallel_size > 1,
        "decode context parallelism is not": parallel.decode_context_parallel_size > 1,
        "prefill context parallelism is not": parallel.prefill_context_parallel_size > 1,
        "microbatches (DBO) share the scratch of one step": bool(parallel.use_ubatching),
        "speculative decoding can change tokens that are hot": vllm_config.speculative_config is not None,
        "KV connectors expect KV on the GPU": vllm_config.kv_transfer_config is not None,
        "Model Runner V2 does not place regions: set VLLM_USE_V2_MODEL_RUNNER=0": vllm_config.use_v2_model_runner,
        "sleep mode does not know the host pool": bool(model.enable_sleep_mode),
        "the pool is for the CUDA platform": not _on_cuda(),
        f"attention backend {getattr(backend, 'name', backend)}: use FLASHMLA_SPARSE": backend is not None
        and backend.name != "FLASHMLA_SPARSE",
        f"kv_cache_dtype {cache.cache_dtype}: use one of {', '.join(CACHES)}": cache.cache_dtype not in CACHES,
        "without scheduler_reserve_full_isl long requests are admitted that cannot end": not (
            vllm_config.scheduler_config.scheduler_reserve_full_isl
        ),
        f"cudagraph_mode {getattr(graphs, 'name', graphs)}: use one of {', '.join(GRAPHS)}": graphs is not None
        and graphs.name not in GRAPHS,
    }
    return [reason for reason, holds in found.items() if holds]


def _on_cuda() -> bool:
    from vllm.platforms import current_platform

    return current_platform.is_cuda()
