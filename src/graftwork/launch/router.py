"""What stands before the engines, told where each of them is."""

from __future__ import annotations

from graftwork.errors import UsageError
from graftwork.launch import infera, llm_d
from graftwork.launch.arguments import Arguments
from graftwork.launch.deployment import STOP_FIRST, Ready
from graftwork.launch.draft import Draft, Plan
from graftwork.launch.environment import Environment
from graftwork.launch.flags import table
from graftwork.launch.placeholders import escape
from graftwork.launch.recipe import Router
from graftwork.launch.vllm import MOONCAKE

DEFAULTS = {"sglang-router": "0.3.2", "vllm-router": "0.1.17", "infera": infera.VERSION}
_MODULES = {
    "sglang-router": "sglang_router.launch_router",
    "vllm-router": "vllm_router.launch_router",
    "infera": "infera.server",
}
PAIRED_BLOCK = 16  # tokens; fixed in vllm-router 0.1.17 where prefill and decode run apart
_POLICIES = ("--policy", "--prefill-policy", "--decode-policy", "--router-policy")


def drafts(plan: Plan, engines: list[Draft]) -> list[Draft]:
    """The router of the recipe and what it needs beside itself; *engines* are all components of engines."""
    wanted = plan.recipe.router
    if wanted is None:
        return []
    _check_engine(plan, wanted)
    serving = [draft for draft in engines if draft.ready.kind == "http"]
    if wanted.kind == "llm-d":
        return llm_d.drafts(plan, wanted, serving)
    draft = Draft(
        "router",
        "router",
        0,
        [escape(word) for word in wanted.command],
        Ready(kind="http", port="http", path="/health", bound_s=plan.recipe.bounds.ready_s),
        plan.recipe.bounds.router_s,
        STOP_FIRST,
        env=Environment(wanted.env),
        ports={"http": 1},
    )
    if wanted.kind == "command":
        _own(wanted, draft, serving)
        return [draft]
    version = wanted.version or DEFAULTS[wanted.kind]
    draft.prefix = draft.prefix or [plan.contents.interpreter, "-m", _MODULES[wanted.kind]]
    name = "infera-server" if wanted.kind == "infera" else wanted.kind
    draft.args = Arguments(table(name, version), wanted.args, warnings=plan.warnings)
    if wanted.kind == "infera":
        infera.router(plan, wanted, draft.args)
    else:
        draft.ports["metrics"] = 1
        _gateway(plan, wanted, draft.args, serving)
    if _follows_events(draft.args):
        _events(plan, wanted, draft.args, serving)
    return [draft]


def url(draft: Draft) -> str:
    """Where an engine answers."""
    return f"http://{{host:{draft.node}}}:{{port:{draft.name}/http}}"


def _check_engine(plan: Plan, wanted: Router) -> None:
    engine = plan.recipe.engine
    if wanted.kind in ("sglang-router", "infera") and engine != "sglang":
        raise UsageError(f"router {wanted.kind} is for SGLang, the recipe's engine is {engine}")
    if wanted.kind in ("vllm-router", "llm-d") and engine != "vllm":
        raise UsageError(f"router {wanted.kind} is for vLLM, the recipe's engine is {engine}")
    if wanted.kind == "sglang-router" and plan.recipe.kv_events is not None:
        plan.warn("sglang-router reads no KV events: cache_aware guesses from the requests that it has sent")


def _gateway(plan: Plan, wanted: Router, args: Arguments, engines: list[Draft]) -> None:
    """sglang-router and vllm-router: the same origin, nearly the same arguments."""
    args.add("--host", "0.0.0.0", why="clients reach it from elsewhere")
    args.add("--port", "{port:http}", why="a port that is free on this node")
    args.add("--policy", wanted.policy or "cache_aware", why="requests with one beginning go to one engine")
    args.add("--worker-startup-timeout-secs", plan.recipe.bounds.ready_s, why="engines load weights for so long")
    args.add("--prometheus-host", "0.0.0.0", why="metrics are read from elsewhere")
    args.add("--prometheus-port", "{port:metrics}", why="29000, the default, may be taken")
    if wanted.kind == "sglang-router":
        seconds = max(plan.recipe.bounds.router_s - 10, 1)
        args.add("--shutdown-grace-period-secs", seconds, why="180, the default, is longer than this stage may take")
    if plan.recipe.prefill is None:
        args.add("--worker-urls", *(url(draft) for draft in engines), why="all engines")
        return
    vllm = wanted.kind == "vllm-router"
    args.add("--vllm-pd-disaggregation" if vllm else "--pd-disaggregation", why="prefill and decode run apart")
    if plan.recipe.transfer.backend == MOONCAKE:
        args.add(
            "--kv-connector", "mooncake", why="the protocol in which it introduces decode to prefill; NIXL by default"
        )
    for draft in engines:
        if draft.role == "prefill":
            bootstrap = [f"{{port:{draft.name}/bootstrap}}"] if "bootstrap" in draft.ports else []
            args.add("--prefill", url(draft), *bootstrap, why="an engine, and where decode asks it for the cache")
        else:
            args.add("--decode", url(draft), why="an engine")


def _follows_events(args: Arguments) -> bool:
    """Whether a policy of the router needs KV events, whoever chose it and however it is spelled."""
    policies = [args.value(name) or "" for name in _POLICIES if name in args.table.flags]
    return "kv-aware" in [policy.replace("_", "-") for policy in policies]


def _events(plan: Plan, wanted: Router, args: Arguments, engines: list[Draft]) -> None:
    """Where vllm-router hears of what is cached; Infera's finds that out. UsageError where it would hear nothing."""
    events, paired = plan.recipe.kv_events, plan.recipe.prefill is not None
    source = "--pd-kv-events" if paired else "--kv-event-source"
    if wanted.kind == "vllm-router" and args.has(source):
        return  # the user's own
    if events is None:
        raise UsageError("a router policy that is aware of KV needs [kv_events]: without them its view stays empty")
    if wanted.kind != "vllm-router":
        return
    if paired and events.block_size != PAIRED_BLOCK:
        raise UsageError(
            f"vllm-router counts blocks of {PAIRED_BLOCK} tokens where prefill and decode run apart",
            hint=f"set kv_events.block_size = {PAIRED_BLOCK}, or a policy such as cache_aware",
        )
    for draft in engines:
        if draft.role == "decode":
            continue
        if not draft.checked.has("--kv-events-config"):
            raise UsageError(
                f"{draft.name} publishes no KV events, which the router's policy needs",
                hint=f"add {draft.role} to kv_events.legs, and take --kv-events-config out of drop",
            )
        if draft.ports["kv-events"] != 1:
            raise UsageError(
                f"{draft.name}: vllm-router is told an endpoint for each rank, which are one after the other here",
                hint=f"give {source} in router.args, or run engines of one rank",
            )
        at = f"{url(draft)}=tcp://{{host:{draft.node}}}:{{port:{draft.name}/kv-events}}"
        args.add(source, at, why="what this engine caches, as it happens")
    if not paired:
        args.add("--kv-event-block-size", events.block_size or PAIRED_BLOCK, why="as the engines count")
        args.add("--kv-event-model", escape(plan.recipe.model.served_name), why="one model, whoever serves it")


def _own(wanted: Router, draft: Draft, engines: list[Draft]) -> None:
    """A program of the user's: it is told by its environment where everything is."""
    draft.said(wanted.args)
    draft.env.add("GRAFTWORK_PORT", "{port:http}", "where it is expected to answer")
    for role in ("prefill", "decode", "mixed"):
        urls = [url(each) for each in engines if each.role == role]
        if urls:
            draft.env.add(f"GRAFTWORK_{role.upper()}_URLS", ",".join(urls), "the engines of this role")
