"""Blocks from two budgets: MLA KV fills the host pool, the indexer's KV what is left of the GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vllm.logger import init_logger

from .config import active, settings

logger = init_logger(__name__)


def in_host_memory(layer_name: str) -> bool:
    """Whether a layer's KV lives in the host pool: MLA layers, and not their indexers."""
    return ".indexer" not in layer_name


def is_host_resident(vllm_config: Any, layer_name: str) -> bool:
    """The same, for an engine that may not have hot KV."""
    return active(vllm_config) and in_host_memory(layer_name)


def gpu_resident_specs(vllm_config: Any, specs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those layers of *specs* (name -> KVCacheSpec) whose KV takes GPU memory: all without hot KV."""
    if not active(vllm_config):
        return specs
    return {name: spec for name, spec in specs.items() if not in_host_memory(name)}


def gpu_page_size_bytes(vllm_config: Any, spec: Any) -> int:
    """GPU bytes of one block of a UniformTypeKVCacheSpecs. ValueError where hot KV leaves nothing on the GPU."""
    if not active(vllm_config):
        return spec.page_size_bytes
    size = _bytes(gpu_resident_specs(vllm_config, spec.kv_cache_specs).values())
    if size == 0 or size == spec.page_size_bytes:
        raise ValueError("hisparse_config: the model must have MLA layers and layers named .indexer in one KV group")
    return size


def cap_to_host_pool(vllm_config: Any, spec: Any, num_blocks: int) -> int:
    """At most as many blocks as the host pool holds; says both budgets and which one binds."""
    if not active(vllm_config):
        return num_blocks
    in_host = host_blocks(vllm_config, spec.kv_cache_specs)
    binds = "the GPU's memory" if num_blocks <= in_host else "host_pool_gib"
    logger.info(
        "HiSparse: %s tokens fit the GPU (indexer KV), %s fit the host pool (MLA KV); %s binds",
        f"{num_blocks * spec.block_size:,}",
        f"{in_host * spec.block_size:,}",
        binds,
    )
    return min(num_blocks, in_host)


def host_blocks(vllm_config: Any, specs: Mapping[str, Any]) -> int:
    """Blocks that the host pool of one rank holds."""
    block = _bytes(spec for name, spec in specs.items() if in_host_memory(name))
    return settings(vllm_config).pool_bytes // block


def host_pool_holds(vllm_config: Any, groups: list[Any]) -> bool:
    """Whether the pool holds one request of max_model_len; always true without hot KV, and without layers."""
    if not active(vllm_config) or not groups:
        return True
    return _host_need(vllm_config, groups) <= settings(vllm_config).pool_bytes


def check_host_pool(vllm_config: Any, groups_of_workers: list[list[Any]]) -> None:
    """ValueError where one request of max_model_len does not fit the host pool of every worker."""
    for groups in groups_of_workers:
        if not host_pool_holds(vllm_config, groups):
            need, pool = _host_need(vllm_config, groups), settings(vllm_config).pool_bytes
            raise ValueError(
                f"To serve one request of max_model_len {vllm_config.model_config.max_model_len:,} tokens, "
                f"{need / 2**30:.2f} GiB of host memory are needed, and hisparse_config.host_pool_gib is "
                f"{pool / 2**30:.2f}. Raise it, or lower max_model_len."
            )


def _host_need(vllm_config: Any, groups: list[Any]) -> int:
    """Host bytes of one request of max_model_len on a worker: whole blocks, and one for the null block."""
    named = [(name, one) for group in groups for name, one in group.kv_cache_spec.kv_cache_specs.items()]
    specs = [one for name, one in named if in_host_memory(name)]
    return sum(one.max_memory_usage_bytes(vllm_config) + one.page_size_bytes for one in specs)


def _bytes(specs: Iterable[Any]) -> int:
    return sum(spec.page_size_bytes for spec in specs)
