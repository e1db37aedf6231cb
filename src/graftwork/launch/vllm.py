"""vLLM engines: the command and environment of each process of each engine, one a node or one a rank."""

from __future__ import annotations

import json
from typing import Any

from graftwork.errors import UsageError
from graftwork.launch import hisparse, store
from graftwork.launch.arguments import Arguments
from graftwork.launch.deployment import Ready
from graftwork.launch.draft import Draft, Plan
from graftwork.launch.environment import Environment
from graftwork.launch.flags import table
from graftwork.launch.placeholders import escape
from graftwork.launch.topology import Engine

# Connectors by which two engines exchange KV (vllm/distributed/kv_transfer/kv_connector/factory.py); MoRIIO's wants
# ports of its own in its configuration and does not start without.
MOONCAKE = "MooncakeConnector"
PAIRING = ("NixlConnector", "NixlPullConnector", "NixlPushConnector", MOONCAKE)
TIMEOUT = "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS"


def drafts(plan: Plan, engine: Engine) -> list[Draft]:
    """One component for each node that the engine spans, or for each of its ranks."""
    leg = engine.leg
    local = leg.dp // leg.span
    if leg.ranks == "apart" and leg.dp > 1:
        return [_process(plan, engine, rank // local, rank % local, rank) for rank in range(leg.dp)]
    return [_process(plan, engine, place, None, place * local) for place in range(leg.span)]


def name_of(engine: Engine, place: int, rank: int | None = None) -> str:
    """The component on the engine's node number *place*, or of its *rank*."""
    if rank is not None:
        return f"{engine.name}-r{rank}"
    return engine.name if engine.leg.span == 1 else f"{engine.name}-n{place}"


def _process(plan: Plan, engine: Engine, place: int, local: int | None, rank: int) -> Draft:
    """*rank* is the first, or the only, data-parallel rank of the process; *local* its number on the node."""
    recipe, leg = plan.recipe, engine.leg
    head = local is not None or place == 0
    per_node = leg.tp * leg.dp // leg.span
    gpus = range(per_node) if local is None else range(local * leg.tp, (local + 1) * leg.tp)
    draft = Draft(
        name_of(engine, place, None if local is None else rank),
        engine.role,
        engine.nodes[place],
        [plan.contents.interpreter, "-m", "vllm.entrypoints.cli.main", "serve"],
        Ready(kind="http", port="http", path="/health", bound_s=recipe.bounds.ready_s) if head else Ready(kind="none"),
        recipe.bounds.engine_s,
        args=Arguments(table("vllm", plan.release.table), leg.args, leg.drop, plan.warnings),
        env=Environment(leg.env),
        ports={"http": 1} if head else {},
        gpus=list(gpus),
    )
    _basics(plan, draft, head)
    _parallel(engine, draft, place, local, rank)
    _sizes(plan, engine, draft)
    _model(plan, engine, draft)
    first = name_of(engine, place, None if local is None else rank - local)
    _events(plan, engine, draft, first)
    _transfer(plan, engine, draft, first)
    hisparse.vllm(plan, engine, draft)
    _stop(plan, draft)
    _environment(draft)
    draft.demand(plan.contents.demands)
    return draft


def _basics(plan: Plan, draft: Draft, head: bool) -> None:
    model, args = plan.recipe.model, draft.checked
    draft.word(escape(model.path), why="the model of the recipe")
    args.add("--served-model-name", escape(model.served_name), why="the name that clients use")
    if head:
        args.add("--host", "0.0.0.0", why="peers and the router reach it from other nodes")
        args.add("--port", "{port:http}", why="a port that is free on this node")
    if model.trust_remote_code:
        args.add("--trust-remote-code", why="the model brings code of its own")


def _parallel(engine: Engine, draft: Draft, place: int, local: int | None, rank: int) -> None:
    leg, args = engine.leg, draft.checked
    args.add("--tensor-parallel-size", leg.tp, why="GPUs of each rank")
    if leg.ep:
        args.add("--enable-expert-parallel", why="experts are spread over all ranks")
    if leg.all_to_all:
        args.add("--all2all-backend", leg.all_to_all, why="how tokens reach their experts")
    if leg.dp == 1:
        return  # one rank: arguments of an external balancer would be refused
    args.add("--data-parallel-size", leg.dp, why="ranks of the engine, each with its own KV cache")
    if leg.span == 1 and local is None:
        return
    head = name_of(engine, 0, None if local is None else 0)
    if draft.name == head:
        draft.ports["dp-rpc"] = 1
    args.add("--data-parallel-address", f"{{host:{engine.head}}}", why="where the first rank runs")
    args.add("--data-parallel-rpc-port", f"{{port:{head}/dp-rpc}}", why="29550, the default, may be taken")
    if local is not None:
        args.add("--data-parallel-rank", rank, why="a process of its own; an external balancer is implied")
        args.add("--data-parallel-size-local", 1, why="one rank in this process")
        return
    args.add("--data-parallel-size-local", leg.dp // leg.span, why="ranks on this node")
    if place:
        args.add("--headless", why="the first node answers requests")
        args.add("--data-parallel-start-rank", rank, why="the first rank on this node")


def _sizes(plan: Plan, engine: Engine, draft: Draft) -> None:
    leg, args = engine.leg, draft.checked
    if leg.gpu_share is not None:
        args.add("--gpu-memory-utilization", leg.gpu_share, why="weights and KV cache as a share of the GPU's memory")
    if leg.seats is not None:
        args.add("--max-num-seqs", leg.seats, why="requests that run at once, for each rank")
    if leg.batch_tokens is not None:
        args.add("--max-num-batched-tokens", leg.batch_tokens, why="tokens of a step, for each rank")
    if leg.graph_batch is not None:
        args.add("--max-cudagraph-capture-size", leg.graph_batch, why="largest batch that is captured as a graph")
    if plan.recipe.model.context is not None:
        args.add("--max-model-len", plan.recipe.model.context, why="the longest request that the recipe plans for")


def _model(plan: Plan, engine: Engine, draft: Draft) -> None:
    model, mtp, args = plan.recipe.model, plan.recipe.mtp, draft.checked
    if model.kv_dtype != "auto":
        args.add("--kv-cache-dtype", model.kv_dtype, why="the KV type of the recipe; both legs must agree")
    if model.reasoning_parser:
        args.add("--reasoning-parser", model.reasoning_parser, why="the model's reasoning format")
    if model.tool_call_parser:
        args.add("--tool-call-parser", model.tool_call_parser, why="the model's tool call format")
        args.add("--enable-auto-tool-choice", why="a tool call parser is only asked with it")
    if mtp is not None and engine.role in mtp.legs:
        config: dict[str, Any] = {"method": "mtp", "num_speculative_tokens": mtp.steps}
        if mtp.draft_model:
            config["model"] = escape(mtp.draft_model)
        args.add("--speculative-config", config, why="MTP; both legs use the same values")


def _events(plan: Plan, engine: Engine, draft: Draft, first: str) -> None:
    events, args = plan.recipe.kv_events, draft.checked
    if events is None:
        return
    if events.block_size is not None:
        args.add("--block-size", events.block_size, why="the block size that the router is told; the same on both legs")
    if engine.role not in events.legs:
        draft.notes.append(f"no KV events: {engine.role} is not in kv_events.legs")
        return
    config: dict[str, Any] = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{{port:{first}/kv-events}}",
        "topic": escape(events.topic),
    }
    if events.replay:
        config["replay_endpoint"] = f"tcp://*:{{port:{first}/kv-replay}}"
    for name in ("kv-events", "kv-replay") if events.replay else ("kv-events",):
        if draft.name == first:
            draft.ports[name] = engine.leg.dp  # rank r publishes on the port after r others, on whichever node
    args.add("--kv-events-config", config, why="a router follows what is cached here; rank r adds r to the port")


def _transfer(plan: Plan, engine: Engine, draft: Draft, first: str) -> None:
    backend = plan.recipe.transfer.backend
    if backend and backend not in PAIRING:
        raise UsageError(
            f"transfer.backend {backend}: vLLM pairs engines by one of {', '.join(PAIRING)}",
            hint="for any other give --kv-transfer-config in args",
        )
    config = store.transfer_config(store.connectors(plan, engine))
    if config is not None:
        draft.checked.add("--kv-transfer-config", config, why=_why_connectors(config))
    store.attach(plan, engine, draft)
    said = json.dumps(draft.checked.data("--kv-transfer-config"))
    if store.CONNECTOR in said and draft.env.value("MOONCAKE_CONFIG_PATH") is None:
        plan.warn(f"{draft.name}: {store.CONNECTOR} is the user's word and stays, but no store is in reach: vLLM ends")
    if engine.role == "mixed":
        return
    if backend == MOONCAKE:
        # One for each rank that runs apart, else one for the engine (mooncake_connector.py, bootstrap server).
        apart = engine.leg.ranks == "apart" and engine.leg.dp > 1
        head = draft.name if apart else name_of(engine, 0)
        if draft.name == head:
            draft.ports["bootstrap"] = 1
        why = "8998, the default, is shared by all processes of a node"
        draft.env.add("VLLM_MOONCAKE_BOOTSTRAP_PORT", f"{{port:{head}/bootstrap}}", why)
        return
    if draft.name == first:
        draft.ports["nixl"] = engine.leg.dp
    draft.env.add("VLLM_NIXL_SIDE_CHANNEL_HOST", f"{{host:{draft.node}}}", "the other leg asks here for what to fetch")
    draft.env.add(
        "VLLM_NIXL_SIDE_CHANNEL_PORT", f"{{port:{first}/nixl}}", "5600, the default, is shared; rank r adds r"
    )
    devices = escape(plan.recipe.transfer.devices)
    draft.env.add("UCX_NET_DEVICES", devices or "{nics}", "all of the node's active devices, not one for all ranks")


def _why_connectors(config: dict[str, Any]) -> str:
    names = [each["kv_connector"] for each in config.get("kv_connector_extra_config", {}).get("connectors", [config])]
    roles = {"MooncakeStoreConnector": "the store", "HiSparseConnector": "the host pool of HiSparse"}
    return "KV moves by: " + ", ".join(f"{name} ({roles.get(name, 'the other leg')})" for name in names)


def _stop(plan: Plan, draft: Draft) -> None:
    bound = plan.recipe.bounds.engine_s
    why = "0, the default, cuts requests off and the release of pinned memory short"
    draft.checked.add("--shutdown-timeout", bound, why=why)
    draft.env.add(TIMEOUT, bound, "the second of two bounds: workers are killed after 5 s without it")


def _environment(draft: Draft) -> None:
    env = draft.env
    env.add("PYTHONHASHSEED", "0", "hashes of KV blocks must be the same in every process and run")
    env.add("VLLM_RPC_BASE_PATH", "{tmp}", "sockets of this process alone")
    for name, folder in (
        ("VLLM_CACHE_ROOT", "vllm"),
        ("TRITON_CACHE_DIR", "triton"),
        ("DG_JIT_CACHE_DIR", "deep_gemm"),
    ):
        env.add(name, f"{{cache}}/{folder}", "the user's own: a shared one belongs to whoever came first")
