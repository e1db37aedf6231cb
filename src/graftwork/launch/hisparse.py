"""HiSparse: where its keys go by engine version, and what it costs on the GPU and the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graftwork.errors import UsageError
from graftwork.launch.draft import Draft, Plan
from graftwork.launch.recipe import Leg, Recipe
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
    if not release.hisparse_transfers and (plan.recipe.decode is not None or plan.recipe.kv_cache_offload is not None):
        raise UsageError(
            f"HiSparse of the patch in this {release.engine} {release.version} refuses KV connectors, which expect KV "
            "on the GPU: a decode leg or an offload cannot have it",
            hint="use one mixed leg, or a wheel whose HiSparse transfers KV",
        )
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


@dataclass(frozen=True)
class Sizes:
    """What HiSparse takes on a component as it will run; *pool_gib* is of each rank."""

    pool_gib: float
    buffer_rows: int | None


def sizes(plan: Plan, draft: Draft) -> Sizes | None:
    """The sizes in the arguments of *draft*, the user's among them; None where it has no HiSparse."""
    args, wanted = draft.checked, plan.recipe.hisparse
    if plan.release.hisparse == "sglang":
        config = args.data("--hisparse-config")
        pool = wanted.host_pool_gib if wanted is not None and args.has("--enable-hisparse") else None
    elif plan.release.hisparse == "none":
        return None
    else:
        config = _object(args.data("--attention-config").get("hisparse_config"))
        pool = config.get("host_pool_gib")
        if plan.release.hisparse == "connector":
            pool = _pool_of_connector(args.data("--kv-transfer-config"))
    rows = config.get("device_buffer_size")
    if not isinstance(pool, (int, float)):
        return None
    return Sizes(pool, rows if isinstance(rows, int) else None)


def _pool_of_connector(config: dict[str, Any]) -> Any:
    inner = _object(config.get("kv_connector_extra_config")).get("connectors")
    for each in map(_object, [config, *(inner if isinstance(inner, list) else [])]):
        if each.get("kv_connector") == "HiSparseConnector":
            return _object(each.get("kv_connector_extra_config")).get("host_pool_gib")
    return None


def _object(found: Any) -> dict[str, Any]:
    """A JSON object as it is, and nothing for what a user may have put in its place: the engine says what is wrong."""
    return found if isinstance(found, dict) else {}


def seat_bytes(recipe: Recipe, buffer_rows: int | None) -> int | None:
    """GPU bytes of one seat: its hot rows in every layer; None where the recipe does not say how many layers."""
    if recipe.model.layers is None:
        return None
    rows = -(-((buffer_rows or 2 * TOPK) + 1) // 128) * 128
    kind = "fp8" if recipe.model.kv_dtype.startswith("fp8") else "bf16"
    return rows * ROW_BYTES[kind] * recipe.model.layers


def seats_of_rank(recipe: Recipe, leg: Leg, draft: Draft) -> int:
    """Seats of one rank as it will run: vLLM counts them so, SGLang for the whole engine. 0 where nothing says."""
    if recipe.engine == "vllm":
        return int(draft.checked.value("--max-num-seqs") or 0)
    return -(-int(draft.checked.value("--max-running-requests") or 0) // leg.dp)
