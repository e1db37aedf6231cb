"""HiSparse: where its keys go by engine version, and what it costs on the GPU and the host."""

from __future__ import annotations

from typing import Any

from graftwork.errors import UsageError
from graftwork.launch.draft import Draft, Plan
from graftwork.launch.recipe import HiSparse, Leg, Recipe
from graftwork.launch.topology import Engine

TOPK = 2048  # index_topk of the GLM-5.x and DeepSeek-V3.2 configurations
ROW_BYTES = {"bf16": 1152, "fp8": 656}  # of one token in one layer (vllm/v1/kv_cache_interface.py, MLAAttentionSpec)


def check(plan: Plan) -> None:
    """UsageError where the engine of this image has no HiSparse, or not these keys."""
    wanted, release, arch = plan.recipe.hisparse, plan.release, plan.recipe.node.arch
    if wanted is None:
        return
    if release.hisparse == "none":
        raise UsageError(
            f"{release.engine} {release.version} has no HiSparse: its configuration would be an unknown key at start",
            hint="use an image with the patch vllm/hisparse, a wheel that has it, or vLLM 0.30.0 and newer",
        )
    if arch not in release.hisparse_archs:
        have = ", ".join(sorted(release.hisparse_archs))
        raise UsageError(
            f"{release.engine} {release.version} has HiSparse for {have}, not for {arch}",
            hint="leave [hisparse] out on this architecture",
        )
    if plan.platform not in release.hisparse_platforms:
        raise UsageError(f"HiSparse of {release.engine} {release.version} is for CUDA, the nodes are {plan.platform}")
    if wanted.host_to_device_ratio is not None and release.hisparse != "sglang":
        raise UsageError("hisparse.host_to_device_ratio is a key of SGLang", hint="vLLM takes host_pool_gib")
    if wanted.eager_host_mirror is not None and release.hisparse != "connector":
        raise UsageError("hisparse.eager_host_mirror is a key of vLLM 0.30.0 and newer", hint="leave it out")
    if wanted.device_buffer_size is not None and wanted.device_buffer_size < TOPK:
        raise UsageError(f"hisparse.device_buffer_size {wanted.device_buffer_size} is below the model's top-k, {TOPK}")


def vllm(plan: Plan, engine: Engine, draft: Draft) -> None:
    """vLLM's keys: one dictionary up to 0.24, split between it and a connector since 0.30."""
    wanted, args = plan.recipe.hisparse, draft.checked
    if wanted is None or engine.role == "prefill":
        return
    config: dict[str, Any] = {"device_buffer_size": wanted.device_buffer_size}
    if plan.release.hisparse == "attention-config":
        config = {"host_pool_gib": wanted.host_pool_gib, **config}
        why = "HiSparse: the pool of each rank, and the hot rows of each seat"
        graphs = {"cudagraph_mode": "FULL_DECODE_ONLY"}
        args.add("--compilation-config", graphs, why="the graphs that HiSparse of 0.24 is written for")
    else:
        config["eager_host_mirror"] = wanted.eager_host_mirror
        why = "HiSparse: the hot rows; the pool stands in the HiSparseConnector since 0.30"
    if kept := {key: value for key, value in config.items() if value is not None}:
        args.add("--attention-config", {"hisparse_config": kept}, why=why)
    if not args.has("--max-num-seqs"):
        raise UsageError(
            f"{draft.name}: HiSparse needs seats: the default, 1024, takes all GPU memory before the first request",
            hint=f"set seats in [{engine.role}], such as 96",
        )


def seat_bytes(recipe: Recipe, wanted: HiSparse) -> int | None:
    """GPU bytes of one seat: its hot rows in every layer; None where the recipe does not say how many layers."""
    if recipe.model.layers is None:
        return None
    rows = wanted.device_buffer_size or 2 * TOPK
    rows = -(-(rows + 1) // 128) * 128
    kind = "fp8" if recipe.model.kv_dtype.startswith("fp8") else "bf16"
    return rows * ROW_BYTES[kind] * recipe.model.layers


def seats_of_rank(recipe: Recipe, leg: Leg) -> int:
    """Seats of one rank: vLLM counts them so, SGLang for the whole engine."""
    seats = leg.seats or 0
    return seats if recipe.engine == "vllm" else -(-seats // leg.dp)
