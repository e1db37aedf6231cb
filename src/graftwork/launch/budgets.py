"""Whether what was rendered fits its nodes, and whether stopping fits into its bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import ceil

from graftwork.errors import PolicyError, UsageError
from graftwork.launch import hisparse, store
from graftwork.launch.deployment import STOP_ENGINES, Bounds
from graftwork.launch.draft import Draft, Plan
from graftwork.launch.recipe import GIB
from graftwork.launch.topology import Engine, node_count, role_of
from graftwork.launch.vllm import TIMEOUT

Memory = dict[int, dict[str, float]]


def host_memory(plan: Plan, legs: Sequence[tuple[Engine, Draft]], daemons: Sequence[Draft]) -> Memory:
    """GiB of main memory that each node's parts take, by node and part. PolicyError when a node has less.

    Counted is what will run: the user's arguments among it.
    """
    recipe, taken = plan.recipe, {}
    for node in range(node_count(recipe)):
        ranks: Counter[tuple[str, str, float]] = Counter()
        for engine, draft in legs:
            if draft.node == node:
                for each in _of_a_rank(plan, engine, draft):
                    ranks[each] += len(draft.gpus)
        parts = {"reserved": recipe.node.reserved_gib}
        parts |= {f"{what}, {n} ranks of {said}": n * size for (what, said, size), n in ranks.items()}
        if recipe.kv_cache_offload is not None and node in store.nodes_in_scope(recipe):
            parts["store"] = recipe.kv_cache_offload.cpu_gib
        for draft in (draft for draft in daemons if draft.node == node):
            parts["kvd"] = int(draft.checked.value("--max-bytes") or 0) / GIB
        total = sum(parts.values())
        if total > recipe.node.memory_gib:
            sums = " + ".join(f"{name} {size:.0f}" for name, size in parts.items())
            raise PolicyError(
                f"node {node} ({role_of(recipe, node)}): {total:.0f} GiB of main memory are needed, it has "
                f"{recipe.node.memory_gib:g}: {sums}",
                hint="make a part smaller, or keep it off these nodes (kv_cache_offload.roles)",
            )
        taken[node] = parts
    return taken


def _of_a_rank(plan: Plan, engine: Engine, draft: Draft) -> Iterator[tuple[str, str, float]]:
    """(what, size as it is said, GiB) of main memory that each rank of *draft* takes."""
    args, offload = draft.checked, plan.recipe.kv_cache_offload
    if sparse := hisparse.sizes(plan, draft):
        yield "HiSparse", f"{sparse.pool_gib:g}", sparse.pool_gib
    if offload is not None and store.in_scope(plan.recipe, engine):
        yield "store buffers", f"{offload.local_buffer_gib:g}", offload.local_buffer_gib
    if plan.recipe.engine == "sglang" and args.has("--enable-hierarchical-cache"):
        size = args.value("--hicache-size") or "0"
        yield "HiCache", f"{size} GB", int(size) * 1e9 / GIB


def seats(plan: Plan, legs: Sequence[tuple[Engine, Draft]]) -> None:
    """Warn where the seats of HiSparse take more GPU memory than they should; PolicyError beyond the GPU itself."""
    recipe = plan.recipe
    for engine, draft in legs:
        sparse = hisparse.sizes(plan, draft)
        each = hisparse.seat_bytes(recipe, sparse.buffer_rows) if sparse is not None else None
        count = hisparse.seats_of_rank(recipe, engine.leg, draft)
        if each is None or not count:
            continue
        total, budget = count * each / GIB, recipe.hisparse.seat_budget_gib if recipe.hisparse is not None else None
        said = f"{engine.name}: {count} seats of {each / 1e6:.0f} MB are {total:.0f} GiB of each GPU"
        if total > recipe.node.gpu_memory_gib:
            raise PolicyError(
                f"{said}, which has {recipe.node.gpu_memory_gib:g}", hint="fewer seats, or a smaller buffer"
            )
        if budget is not None and total > budget:
            plan.warn(f"{said}, the recipe's budget is {budget:g}")


def bounds(plan: Plan, drafts: list[Draft]) -> Bounds:
    """The bounds of the deployment, and of each draft, with what the user said. UsageError when they do not nest."""
    wanted = plan.recipe.bounds
    for draft in drafts:
        draft.drain_s = max(draft.drain_s, _says(draft))
    stages = {order: max([d.drain_s for d in drafts if d.order == order], default=0) for order in (0, 1, 2)}
    found = Bounds(engine_s=stages[STOP_ENGINES], drain_s=wanted.drain_s, lead_s=wanted.lead_s)
    if not found.engine_s < found.drain_s < found.lead_s:
        raise UsageError(
            f"bounds do not nest: engine {found.engine_s} s < drain {found.drain_s} s < lead {found.lead_s} s",
            hint="raise drain_s and lead_s in [bounds]; the engine's counts with what its arguments say",
        )
    if sum(stages.values()) >= found.drain_s:
        said = " + ".join(f"{seconds} s" for seconds in stages.values())
        raise UsageError(
            f"router, engines and store may take {said}, which is not less than drain_s, {found.drain_s} s",
            hint="raise drain_s and lead_s in [bounds]",
        )
    return found


# How long a program takes at most once it is told to end: vLLM, Infera's wrapper, sglang-router.
_SHUTDOWN = ("--shutdown-timeout", "--drain-timeout", "--shutdown-grace-period-secs")


def _says(draft: Draft) -> int:
    """Seconds that a program's own arguments and environment allow it for stopping, 0 where they do not say."""
    if draft.args is None:
        return 0
    said = [draft.args.value(name) for name in _SHUTDOWN if name in draft.args.table.flags]
    return max(
        [ceil(float(value)) for value in [*said, draft.env.value(TIMEOUT)] if value and _is_number(value)], default=0
    )


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()
