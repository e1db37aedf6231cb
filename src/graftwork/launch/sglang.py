"""SGLang engines: the command and environment of each node of each engine."""

from __future__ import annotations

from graftwork.errors import UsageError
from graftwork.launch import kvd
from graftwork.launch.arguments import Arguments
from graftwork.launch.deployment import Ready
from graftwork.launch.draft import Draft, Plan
from graftwork.launch.environment import Environment
from graftwork.launch.flags import Table, table
from graftwork.launch.infera import dress, known_flags
from graftwork.launch.placeholders import escape
from graftwork.launch.releases import ALIASES
from graftwork.launch.topology import Engine

# An engine listens on the port of --dist-init-addr and, with DP attention, on up to 13 after it
# (sglang/srt/server_args.py, PortArgs.init_new; DP_ATTENTION_HANDSHAKE_PORT_DELTA).
DIST_PORTS = 14
RADIX = "--disaggregation-decode-enable-radix-cache"
OFFLOAD = "--disaggregation-decode-enable-offload-kvcache"


def drafts(plan: Plan, engine: Engine) -> list[Draft]:
    """One component for each node that the engine spans."""
    known = known_flags(plan, table("sglang", plan.release.table))
    return [_node(plan, engine, known, place) for place in range(len(engine.nodes))]


def name_of(engine: Engine, place: int) -> str:
    """The component on the engine's node number *place*."""
    return engine.name if len(engine.nodes) == 1 else f"{engine.name}-n{place}"


def _node(plan: Plan, engine: Engine, known: Table, place: int) -> Draft:
    recipe, leg, head = plan.recipe, engine.leg, place == 0
    draft = Draft(
        name_of(engine, place),
        engine.role,
        engine.nodes[place],
        [plan.contents.interpreter, "-m", "sglang.launch_server"],
        Ready(kind="http", port="http", path="/health", bound_s=recipe.bounds.ready_s) if head else Ready(kind="none"),
        recipe.bounds.engine_s,
        args=Arguments(known, leg.args, leg.drop, plan.warnings),
        env=Environment(leg.env),
        ports={"http": 1},
        gpus=list(range(leg.tp // leg.span)),
    )
    _basics(plan, draft)
    _parallel(engine, draft, place)
    _sizes(engine, draft)
    _model(plan, draft)
    _speculation(plan, engine, draft)
    _handover(plan, engine, draft)
    _hisparse(plan, engine, draft)
    events = _events(plan, engine, draft)
    if recipe.kvd is not None or leg.hicache_gb is not None:
        kvd.wire(plan, engine, draft)
    _decode_cache(plan, engine, draft, events)
    _environment(plan, draft)
    draft.demand(plan.contents.demands)
    if recipe.router is not None and recipe.router.kind == "infera":
        dress(plan, engine, draft, events)
    _refuse(plan, engine, draft)
    return draft


def _basics(plan: Plan, draft: Draft) -> None:
    model, args = plan.recipe.model, draft.checked
    args.add("--model-path", escape(model.path), why="the model of the recipe")
    args.add("--served-model-name", escape(model.served_name), why="the name that clients use")
    args.add("--host", "0.0.0.0", why="peers and the router reach it from other nodes")
    args.add("--port", "{port:http}", why="a port that is free on this node; a fixed one collides with a second leg")
    if model.trust_remote_code:
        args.add("--trust-remote-code", why="the model brings code of its own")


def _parallel(engine: Engine, draft: Draft, place: int) -> None:
    leg, args = engine.leg, draft.checked
    args.add("--tp-size", leg.tp, why=f"all {leg.tp} GPUs of the engine")
    if leg.dp_attention:
        args.add("--dp-size", leg.dp, why="attention ranks, each with its own KV cache")
        args.add("--enable-dp-attention", why="without it dp would replicate the model")
    if leg.ep:
        args.add("--ep-size", leg.tp, why="experts are spread over all GPUs, whatever attention does")
    if leg.all_to_all:
        args.add("--moe-a2a-backend", leg.all_to_all, why="how tokens reach their experts")
    if leg.span > 1 or leg.dp_attention:
        draft.ports["dist"] = DIST_PORTS
        where = "127.0.0.1:{port:dist}"
        if leg.span > 1:
            where = f"{{host:{engine.head}}}:{{port:{name_of(engine, 0)}/dist}}"
            args.add("--nnodes", leg.span, why="the engine spans these nodes")
            args.add("--node-rank", place, why="this node's place in the engine")
        why = "its own block of ports: the default is taken from --port and may be taken already"
        args.add("--dist-init-addr", where, why=why)


def _sizes(engine: Engine, draft: Draft) -> None:
    leg, args = engine.leg, draft.checked
    if leg.gpu_share is not None:
        args.add("--mem-fraction-static", leg.gpu_share, why="weights and KV cache as a share of the GPU's memory")
    if leg.batch_tokens is not None:
        why = "tokens of a prefill step; a budget of the whole engine, divided among DP-attention ranks"
        args.add("--chunked-prefill-size", leg.batch_tokens, why=why)
    if leg.seats is not None:
        why = "requests that run at once; of the whole engine, divided among DP-attention ranks"
        args.add("--max-running-requests", leg.seats, why=why)
    if leg.graph_batch is not None and engine.role != "prefill":
        args.add("--cuda-graph-max-bs-decode", leg.graph_batch, why="largest batch that is captured as a graph")


def _model(plan: Plan, draft: Draft) -> None:
    model, args = plan.recipe.model, draft.checked
    if model.context is not None:
        args.add("--context-length", model.context, why="the longest request that the recipe plans for")
    if model.kv_dtype != "auto":
        args.add("--kv-cache-dtype", model.kv_dtype, why="the KV type of the recipe; both legs must agree")
    if model.sparse and plan.platform == "rocm":
        for phase in ("prefill", "decode"):
            args.add(f"--dsa-{phase}-backend", "tilelang", why="the sparse attention kernel that serves ROCm")
    if model.reasoning_parser:
        args.add("--reasoning-parser", model.reasoning_parser, why="the model's reasoning format")
    if model.tool_call_parser:
        args.add("--tool-call-parser", model.tool_call_parser, why="the model's tool call format")
    args.add("--watchdog-timeout", 1200, why="first steps compile kernels for longer than the default allows")
    args.add("--enable-metrics", why="every positive check of the operator guide reads metrics")
    args.add("--enable-metrics-for-all-schedulers", why="with DP attention the others' counters would be missing")
    args.add("--enable-cache-report", why="without it a client's cached_tokens is always 0")


def _speculation(plan: Plan, engine: Engine, draft: Draft) -> None:
    mtp, args = plan.recipe.mtp, draft.checked
    if mtp is None or engine.role not in mtp.legs:
        return
    why = "MTP; both legs use the same values, as the draft state is handed over too"
    args.add("--speculative-algorithm", mtp.algorithm, why=why)
    args.add("--speculative-num-steps", mtp.steps, why=why)
    args.add("--speculative-eagle-topk", mtp.topk, why=why)
    args.add("--speculative-num-draft-tokens", mtp.draft_tokens or mtp.steps + 1, why=why)
    if mtp.draft_model:
        args.add("--speculative-draft-model-path", escape(mtp.draft_model), why=why)
    if plan.platform == "rocm":
        args.add("--disable-custom-all-reduce", why="aiter's kernel is reported to deadlock in the verify step")


def _handover(plan: Plan, engine: Engine, draft: Draft) -> None:
    if engine.role == "mixed":
        return
    transfer, args = plan.recipe.transfer, draft.checked
    args.add("--disaggregation-mode", engine.role, why="prefill and decode run apart")
    args.add("--disaggregation-transfer-backend", transfer.backend or "mooncake", why="how KV reaches the decode leg")
    if transfer.devices:
        args.add("--disaggregation-ib-device", escape(transfer.devices), why="the devices of the recipe")
    if engine.role == "prefill":
        draft.ports["bootstrap"] = 1
        args.add("--disaggregation-bootstrap-port", "{port:bootstrap}", why="8998, the default, may be taken")
    draft.env.add(
        "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT", plan.recipe.bounds.ready_s, "the other leg may still load weights"
    )


def _hisparse(plan: Plan, engine: Engine, draft: Draft) -> None:
    sparse, args = plan.recipe.hisparse, draft.checked
    if sparse is None or engine.role == "prefill":
        return
    args.add("--enable-hisparse", why="KV in pinned host memory, a hot buffer on the GPU")
    config = {"device_buffer_size": sparse.device_buffer_size, "host_to_device_ratio": sparse.host_to_device_ratio}
    if kept := {key: value for key, value in config.items() if value is not None}:
        args.add("--hisparse-config", kept, why="sizes of the hot buffer and the host pool, in SGLang's keys")
    if engine.role == "mixed":
        args.add("--disable-radix-cache", why="SGLang's HiSparse asserts that there is no radix cache")


def _events(plan: Plan, engine: Engine, draft: Draft) -> bool:
    """Whether KV events come from this leg, by the recipe and by the user's own arguments."""
    events, args = plan.recipe.kv_events, draft.checked
    on = events is not None and engine.role in events.legs
    behind_infera = plan.recipe.router is not None and plan.recipe.router.kind == "infera"
    if behind_infera and (said := args.value("--kv-events")) is not None:
        on = said != "off"
    ranks = engine.leg.dp if engine.leg.dp_attention else 1
    if on:
        draft.ports["kv-events"] = ranks
    if on and events is not None and events.block_size is not None:
        args.add("--page-size", events.block_size, why="the block size that the router is told")
    if behind_infera:
        if events is not None and (events.topic or events.replay):
            plan.warn("kv_events.topic and replay have no effect: Infera's wrapper says how it publishes")
        return on
    if on and events is not None:
        config = {"publisher": "zmq", "endpoint": "tcp://*:{port:kv-events}", "topic": escape(events.topic)}
        if events.replay:
            draft.ports["kv-replay"] = ranks
            config["replay_endpoint"] = "tcp://*:{port:kv-replay}"
        why = "a router follows what is cached here; attention rank r publishes on the port after r others"
        args.add("--kv-events-config", config, why=why)
    return args.has("--kv-events-config")


def _decode_cache(plan: Plan, engine: Engine, draft: Draft, events: bool) -> None:
    """The decode leg's radix cache, only where the engine takes it and something reads it."""
    if engine.role != "decode":
        return
    args = draft.checked
    algorithm = (args.value("--speculative-algorithm") or "").upper()
    allowed = not algorithm or ALIASES.get(algorithm, algorithm) in plan.release.decode_radix_with
    backend = args.value("--disaggregation-transfer-backend")
    rejected = [
        (not allowed, f"SGLang {plan.release.version} rejects it beside --speculative-algorithm {algorithm}"),
        (args.has("--enable-hisparse"), "HiSparse excludes it"),
        (backend == "fake", "the transfer backend fake excludes it"),
        (plan.recipe.model.recurrent, "models with sliding windows or state spaces exclude it"),
    ]
    useless = [
        (not events, "no KV events are published from this leg"),
        (backend != "mooncake", "the transfer backend is not mooncake"),
    ]
    wrong = [why for holds, why in rejected if holds]
    against = [*wrong, *(why for holds, why in useless if holds)]
    if args.has(RADIX) and wrong:
        plan.warn(f"{draft.name}: {RADIX} is the user's word and stays, but {'; '.join(wrong)}")
    elif against and not args.has(RADIX):
        draft.notes.append(f"no {RADIX}: {'; '.join(against)}")
    elif not args.has(RADIX):
        args.add(RADIX, why="the router steers repeats to the rank that holds the prefix; only the rest is transferred")


def _environment(plan: Plan, draft: Draft) -> None:
    env, node = draft.env, draft.node
    env.add("SGLANG_HOST_IP", f"{{host:{node}}}", "the address that peers reach this node by")
    env.add("PYTHONHASHSEED", "0", "hashes of KV blocks must be the same in every process and run")
    for name, folder in (("TRITON_CACHE_DIR", "triton"), ("SGLANG_DG_CACHE_DIR", "deep_gemm")):
        env.add(name, f"{{cache}}/{folder}", "the user's own: a shared one belongs to whoever came first")
    if (draft.checked.value("--disaggregation-transfer-backend") or "") == "nixl":
        devices = escape(plan.recipe.transfer.devices)
        env.add("UCX_NET_DEVICES", devices or "{nics}", "all of the node's active devices, not one for all ranks")


def _refuse(plan: Plan, engine: Engine, draft: Draft) -> None:
    """Combinations that the engine would refuse after minutes, or take and wedge."""
    args = draft.checked
    if args.has(OFFLOAD) and not args.has("--hicache-storage-backend"):
        raise UsageError(
            f"{draft.name}: {OFFLOAD} needs a storage backend of its own on the decode leg, and kvd is none",
            hint="give --hicache-storage-backend with it, or leave it out",
        )
    if args.has("--enable-hierarchical-cache") and engine.role == "decode" and not args.has(RADIX):
        plan.warn(f"{draft.name}: SGLang ends with an error: a hierarchical cache, but no radix cache on a decode leg")
    leg, seats = engine.leg, args.value("--max-running-requests")
    if args.has("--enable-hisparse") and not seats:
        raise UsageError(f"{draft.name}: HiSparse needs seats: each takes GPU memory before the first request")
    if seats and leg.dp_attention and int(seats) % leg.dp:
        plan.warn(f"{draft.name}: {seats} seats do not divide among {leg.dp} attention ranks")
