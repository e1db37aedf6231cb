"""The KV store daemon beside an engine that prefills, and SGLang's hierarchical cache that reads and writes it."""

from __future__ import annotations

from graftwork.errors import UsageError
from graftwork.launch.arguments import Arguments
from graftwork.launch.deployment import STOP_LAST, Ready
from graftwork.launch.draft import Draft, Plan
from graftwork.launch.flags import table
from graftwork.launch.placeholders import escape
from graftwork.launch.recipe import GIB
from graftwork.launch.topology import Engine

BACKEND, EXTRA = "--hicache-storage-backend", "--hicache-storage-backend-extra-config"


def socket_of(node: int) -> str:
    """Where the daemon of a node listens: short, as a socket's path has 108 bytes, and not that of another job."""
    return f"{{cache}}/kvd-{{port:kvd-n{node}/id}}.sock"


def daemons(plan: Plan, engines: list[Engine]) -> list[Draft]:
    """One daemon on each node that prefills."""
    wanted = plan.recipe.kvd
    if wanted is None:
        return []
    found = []
    for node in (node for engine in engines if engine.speaks_first for node in engine.nodes):
        draft = Draft(
            f"kvd-n{node}",
            "sidecar",
            node,
            [escape(word) for word in wanted.command],
            Ready(kind="unix", path=socket_of(node), bound_s=600),
            plan.recipe.bounds.store_s,
            STOP_LAST,
            args=Arguments(table("infera-kvd", wanted.version), wanted.args, warnings=plan.warnings),
            ports={"id": 1},
        )
        args = draft.checked
        args.add("--socket", socket_of(node), why="where the engines of this node find it; the port makes it unique")
        args.add("--max-bytes", int(wanted.memory_gib * GIB), why="its share of main memory, pinned")
        args.add("--long-path", escape(wanted.disk_path), why="the disk tier")
        args.add("--long-bytes", int(wanted.disk_gib * GIB), why="the room of the disk tier")
        args.add("--io-mode", wanted.io_mode, why="how it writes; graftwork probe says what the disk can do")
        found.append(draft)
    return found


def wire(plan: Plan, engine: Engine, draft: Draft) -> None:
    """SGLang's side of it, on an engine that prefills; nothing of it on a decode leg, and a note that says so."""
    wanted, args = plan.recipe.kvd, draft.checked
    if engine.role == "decode":
        if engine.leg.hicache_gb is not None:
            raise UsageError(
                f"{draft.name}: a hierarchical cache on a decode leg is refused by SGLang, or wedges its start",
                hint="take hicache_gb out of [decode]",
            )
        draft.notes.append("no kvd: a decode leg has no radix cache to restore into, its writes would never be read")
        return
    if engine.leg.hicache_gb is None and not args.has("--hicache-size"):
        raise UsageError(
            f"{draft.name}: kvd needs hicache_gb: without it the host tier is sized from the GPU's pool, 355 GB a rank "
            "on a small model",
            hint=f"set hicache_gb in [{engine.role}]: GB for each rank",
        )
    args.add("--enable-hierarchical-cache", why="keep what leaves the GPU's KV cache in main memory")
    if engine.leg.hicache_gb is not None:
        args.add("--hicache-size", engine.leg.hicache_gb, why="GB of main memory for each rank")
    if wanted is None:
        return
    said = args.value(EXTRA)
    own = args.data(EXTRA)
    args.add(BACKEND, "dynamic", why="the engine's own process imports the backend; a name would not reach it")
    config = {
        "backend_name": wanted.backend,
        "module_path": wanted.module,
        "class_name": wanted.name,
        "prefetch_threshold": wanted.prefetch_threshold,
    }
    args.add(EXTRA, config, why="which class; prompts below 256 tokens, the default threshold, would never prefetch")
    if said is not None and "prefetch_threshold" not in own:
        plan.warn(f"{draft.name}: {EXTRA} has no prefetch_threshold: prompts below 256 tokens never prefetch")
    draft.env.add("INFERA_KVD_SOCKET", socket_of(draft.node), "where the backend finds the daemon of this node")
