"""A recipe as a deployment: engines, store, daemons and router, each argument with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from graftwork.errors import PinError, UsageError
from graftwork.launch import budgets, hisparse, infera, kvd, router, sglang, store, vllm
from graftwork.launch.demands import Contents
from graftwork.launch.deployment import Deployment, Image, Node, check
from graftwork.launch.draft import Draft, Explained, Plan
from graftwork.launch.recipe import Recipe
from graftwork.launch.releases import release
from graftwork.launch.topology import Engine, node_count
from graftwork.launch.topology import engines as engines_of


@dataclass(frozen=True)
class Rendered:
    """What a recipe came to: *memory* is GiB of main memory by node and part, *image_env* what the target sets.

    *folders* are those of the nodes that components read or write, such as the model's.
    """

    deployment: Deployment
    explained: list[Explained]
    memory: budgets.Memory
    platform: str
    image_env: dict[str, str]
    folders: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Everything, as data."""
        found: dict[str, Any] = msgspec.to_builtins(self.deployment)
        found["explained"] = msgspec.to_builtins(self.explained)
        found["memory_gib"] = {str(node): parts for node, parts in self.memory.items()}
        return found


def render(recipe: Recipe, contents: Contents) -> Rendered:
    """Render *recipe* for an image that holds *contents*.

    UsageError for what the engine would refuse and for bounds that do not nest, PinError when the image holds another
    engine, PolicyError when a node has not the memory.
    """
    plan = _plan(recipe, contents)
    hisparse.check(plan)
    found = engines_of(recipe)
    module = sglang if recipe.engine == "sglang" else vllm
    legs = [(engine, draft) for engine in found for draft in module.drafts(plan, engine)]
    daemons = kvd.daemons(plan, found)
    drafts: list[Draft] = [
        *infera.etcd(plan),
        *(store.drafts(plan) if recipe.engine == "vllm" else _no_store(recipe)),
        *daemons,
        *(draft for _, draft in legs),
        *router.drafts(plan, [draft for _, draft in legs]),
    ]
    for engine, draft in legs:
        _warn_of_shape(plan, engine, draft)
    memory = budgets.host_memory(plan, legs, daemons)
    budgets.seats(plan, legs)
    bounds = budgets.bounds(plan, drafts)
    finished = [draft.finish() for draft in drafts]
    deployment = Deployment(
        name=recipe.name,
        engine=recipe.engine,
        version=plan.release.version,
        nodes=node_count(recipe),
        node=Node(gpus=recipe.node.gpus, memory_gib=recipe.node.memory_gib),
        components=[component for component, _ in finished],
        bounds=bounds,
        image=Image(target=contents.target, reference=recipe.image, interpreter=contents.interpreter),
        sbatch=recipe.slurm.options,
        warnings=plan.warnings,
    )
    check(deployment)
    reasons = [explained for _, explained in finished]
    return Rendered(deployment, reasons, memory, plan.platform, dict(contents.env), _folders(recipe))


# What the recipe decides beyond the one argument: GPUs, ports, ranks, and who talks to whom.
_SHAPE = {
    "sglang": ("--tp-size", "--dp-size", "--nnodes", "--node-rank", "--disaggregation-mode"),
    "vllm": ("--tensor-parallel-size", "--data-parallel-size", "--data-parallel-size-local", "--data-parallel-rank"),
}


def _warn_of_shape(plan: Plan, engine: Engine, draft: Draft) -> None:
    for name in _SHAPE[plan.recipe.engine]:
        if draft.checked.overridden(name):
            plan.warn(
                f"{draft.name}: {name} is the user's word and stays, but GPUs, ports and budgets follow [{engine.role}]"
            )


def _folders(recipe: Recipe) -> list[str]:
    said = [recipe.model.path]
    said += [recipe.mtp.draft_model] if recipe.mtp is not None else []
    said += [tier.disk_path for tier in (recipe.kvd, recipe.kv_cache_offload) if tier is not None]
    return [path for path in dict.fromkeys(said) if path.startswith("/")]


def _plan(recipe: Recipe, contents: Contents) -> Plan:
    version = recipe.engine_version
    if contents.engine and (contents.engine, contents.version) != (recipe.engine, version):
        raise PinError(
            f"the recipe is for {recipe.engine} {version}, the image holds {contents.engine} {contents.version}",
            hint="name the image of this version, or change the recipe's version",
        )
    platform = contents.platform or recipe.node.platform or "cuda"
    if platform not in ("cuda", "rocm"):
        raise PinError(f"the image is for {platform}: a recipe is for GPUs", hint="name a target for cuda or rocm")
    if recipe.node.platform is not None and platform != recipe.node.platform:
        raise PinError(f"the recipe's nodes are {recipe.node.platform}, the image is for {platform}")
    if contents.arch not in ("", recipe.node.arch):
        raise PinError(f"the recipe's nodes are {recipe.node.arch}, the image is for {contents.arch}")
    if recipe.kvd is not None and recipe.engine != "sglang":
        raise UsageError("kvd is wired into SGLang's hierarchical cache only", hint="vLLM has [kv_cache_offload]")
    plan = Plan(recipe, release(recipe.engine, version, contents.patches), contents, platform)
    if recipe.mtp is not None and recipe.prefill is not None and not {"prefill", "decode"} <= set(recipe.mtp.legs):
        plan.warn("MTP on one leg only: the other hands over no draft state, and acceptance starts low")
    return plan


def _no_store(recipe: Recipe) -> list[Draft]:
    if recipe.kv_cache_offload is not None:
        raise UsageError("kv_cache_offload composes vLLM's connectors", hint="SGLang has hicache_gb and [kvd]")
    return []
