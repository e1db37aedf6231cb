"""SGLang behind Infera's router: the wrapper that registers an engine and tells the router what it caches.

Names of arguments and their defaults: infera/engine/sglang/args.py and infera/server/args.py of AMD-AGI/Infera at
5890f7f. The project publishes no wheel, so its tables cannot be compared with one.
"""

from __future__ import annotations

from graftwork.launch.arguments import Arguments
from graftwork.launch.deployment import STOP_LAST, Ready
from graftwork.launch.draft import Draft, Plan
from graftwork.launch.flags import Table, table
from graftwork.launch.kvd import socket_of
from graftwork.launch.placeholders import escape
from graftwork.launch.recipe import Router
from graftwork.launch.topology import Engine

VERSION = "5890f7f"
ETCD = "etcd"


def known_flags(plan: Plan, sglang: Table) -> Table:
    """The wrapper takes arguments of its own and passes SGLang's on."""
    router = plan.recipe.router
    if router is None or router.kind != "infera":
        return sglang
    return sglang.joined(table("infera-sglang", router.version or VERSION))


def dress(plan: Plan, engine: Engine, draft: Draft, events: bool) -> None:
    """Run the engine inside the wrapper."""
    args, node = draft.checked, draft.node
    draft.prefix = [plan.contents.interpreter, "-m", "infera.engine.sglang"]
    args.add("--discovery-backend", "etcd", why="nodes of a job have no Kubernetes to register with")
    args.add("--etcd-endpoint", etcd_of(plan), why="where engines register and the router looks")
    args.add("--advertise-host", f"{{host:{node}}}", why="the address that the router and peers reach")
    args.add("--request-transport", "http", why="the default, NATS, needs a broker")
    seconds = max(plan.recipe.bounds.engine_s - 60, plan.recipe.bounds.engine_s // 2)
    args.add("--drain-timeout", seconds, why="running requests may end; a minute of the bound is left for the engine")
    draft.env.add("INFERA_ENGINE_READY_TIMEOUT", plan.recipe.bounds.ready_s, "weights take longer than the default")
    if events:
        args.add("--kv-event-transport", "zmq", why="the default, NATS, needs a broker")
        args.add("--kv-events", "on", why="auto falls back to round robin when the tokenizer does not load")
        args.add("--kv-events-bind", "tcp://0.0.0.0:{port:kv-events}", why="5557, the default, is shared by all legs")
        draft.ports["kv-snapshot"] = 1
        why = "8801, the default, is shared: a second worker dies after it said that it is ready"
        args.add("--kv-snapshot-port", "{port:kv-snapshot}", why=why)
    else:
        args.add("--kv-events", "off", why=f"the recipe publishes no KV events from {engine.role}")
        if args.value("--enable-kv-events") is None:
            args.refuse("--enable-kv-events", why="on by default in the wrapper, with a radix cache on a decode leg")
    if plan.recipe.kvd is not None and engine.speaks_first:
        args.add("--infera-kvd-socket", socket_of(node), why="probed before the engine starts; a dead one ends it")


def etcd_of(plan: Plan) -> str:
    """The etcd of the recipe, or the one that we start on the first node."""
    given = plan.recipe.router.etcd if plan.recipe.router is not None else ""
    return escape(given) or f"{{host:0}}:{{port:{ETCD}/client}}"


def etcd(plan: Plan) -> list[Draft]:
    """An etcd on the first node, where the recipe names none: started first, stopped last."""
    router = plan.recipe.router
    if router is None or router.kind != "infera" or router.etcd:
        return []
    draft = Draft(
        ETCD,
        "discovery",
        0,
        ["etcd"],
        Ready(kind="http", port="client", path="/health", bound_s=120),
        plan.recipe.bounds.store_s,
        STOP_LAST,
        ports={"client": 1, "peer": 1},
    )
    why = "its clients are the engines and the router"
    draft.word("--listen-client-urls", "http://0.0.0.0:{port:client}", why=why)
    draft.word("--advertise-client-urls", "http://{host:0}:{port:client}", why=why)
    why = "alone, but 2380, the default, may be taken"
    draft.word("--listen-peer-urls", "http://127.0.0.1:{port:peer}", why=why)
    draft.word("--initial-advertise-peer-urls", "http://127.0.0.1:{port:peer}", why=why)
    draft.word("--initial-cluster", "default=http://127.0.0.1:{port:peer}", why=why)
    draft.word("--data-dir", "{tmp}/data", why="nothing in it outlives the job")
    return [draft]


def router(plan: Plan, wanted: Router, args: Arguments) -> None:
    """The arguments of ``infera.server``."""
    args.add("--host", "0.0.0.0", why="clients reach it from elsewhere")
    args.add("--port", "{port:http}", why="a port that is free on this node")
    args.add("--discovery-backend", "etcd", why="nodes of a job have no Kubernetes to look into")
    args.add("--etcd-endpoint", etcd_of(plan), why="where engines register")
    args.add("--request-transport", "http", why="the default, NATS, needs a broker")
    events = plan.recipe.kv_events is not None
    policy = wanted.policy or ("kv-aware" if events else "round-robin")
    args.add("--router-policy", policy, why="the recipe's policy; kv-aware, the default, only with KV events")
    if events:
        args.add("--kv-event-transport", "zmq", why="as the engines publish")
    path = escape(plan.recipe.model.path)
    args.add("--router-tokenizer-path", path, why="it does not start without, and kv-aware counts tokens")
    for role, weight in wanted.overlap_weight.items():
        why = "1.0, the default, behaves like round robin"
        args.add(f"--kv-{role}-overlap-weight", weight, why=why)
