"""A Mooncake store: its master and clients, where it is in scope, and the connectors that vLLM composes.

Flags were read in `mooncake_master --helpfull` and `mooncake_client --helpfull` of mooncake-transfer-engine-non-cuda
0.3.13.post1; keys of the rank's file in vllm/distributed/kv_transfer/kv_connector/v1/mooncake/store/worker.py.
"""

from __future__ import annotations

from typing import Any

from graftwork.launch.deployment import STOP_LAST, Ready
from graftwork.launch.draft import Draft, Plan
from graftwork.launch.placeholders import escape
from graftwork.launch.recipe import GIB, KvCacheOffload, Recipe
from graftwork.launch.topology import Engine, node_count, role_of
from graftwork.launch.values import template

MASTER = "store-master"
CONNECTOR = "MooncakeStoreConnector"


def nodes_in_scope(recipe: Recipe) -> list[int]:
    """The nodes that give the store memory and whose engines use it; of a recipe without roles, all."""
    store = recipe.kv_cache_offload
    if store is None:
        return []
    everywhere = recipe.mixed is not None or store.roles is None
    return [node for node in range(node_count(recipe)) if everywhere or role_of(recipe, node) in (store.roles or [])]


def in_scope(recipe: Recipe, engine: Engine) -> bool:
    """Whether the engine uses the store."""
    return engine.head in nodes_in_scope(recipe)


def client_of(node: int) -> str:
    """The name of a node's store client."""
    return f"store-client-n{node}"


def drafts(plan: Plan) -> list[Draft]:
    """The master on the first node in scope, and a client on each."""
    recipe, store = plan.recipe, plan.recipe.kv_cache_offload
    if store is None:
        return []
    if recipe.mixed is not None and store.roles is not None:
        plan.warn("kv_cache_offload.roles has no effect: prefill and decode do not run apart")
    nodes = nodes_in_scope(recipe)
    return [_master(plan, store, nodes[0]), *(_client(plan, store, nodes[0], node) for node in nodes)]


def _master(plan: Plan, store: KvCacheOffload, node: int) -> Draft:
    draft = Draft(
        MASTER,
        "store-master",
        node,
        ["mooncake_master"],
        Ready(kind="tcp", port="rpc", bound_s=120),
        plan.recipe.bounds.store_s,
        STOP_LAST,
        ports={"rpc": 1, "metadata": 1, "metrics": 1},
    )
    draft.word("-rpc_port={port:rpc}", why="50051 by convention; a free one, as another job may be here")
    draft.word("-enable_http_metadata_server=true", why="the clients' metadata, without an etcd")
    draft.word("-http_metadata_server_port={port:metadata}", why="8080 by convention; a free one")
    draft.word("-metrics_port={port:metrics}", why="9003, the default, is also the health port of llm-d's picker")
    lease = store.lease_s * 1000
    draft.word(f"-default_kv_lease_ttl={lease}", why="the default is seconds: blocks would go before decode reads them")
    if store.disk_gib:
        draft.word("-enable_offload=true", why="the store has a disk tier")
    draft.said(store.master_args)
    return draft


def _client(plan: Plan, store: KvCacheOffload, master: int, node: int) -> Draft:
    draft = Draft(
        client_of(node),
        "store-client",
        node,
        ["mooncake_client"],
        # Registering memory takes about a minute for each TB (claimed).
        Ready(kind="tcp", port="rpc", bound_s=600),
        plan.recipe.bounds.store_s,
        STOP_LAST,
        ports={"rpc": 1},
    )
    draft.word(f"-master_server_address={{host:{master}}}:{{port:{MASTER}/rpc}}", why="the master of this deployment")
    draft.word(f"-metadata_server={_metadata(master)}", why="served by the master")
    draft.word(f"-host={{host:{node}}}", why="the address under which others fetch from it")
    draft.word("-port={port:rpc}", why="50052, the default, may be held by what another job left behind")
    draft.word(f"-protocol={store.protocol}", why="how blocks move")
    if store.device:
        draft.word(f"-device_names={escape(store.device)}", why="the devices of the recipe")
    count = len(nodes_in_scope(plan.recipe))
    why = f"what this node gives; the pool has {count} x {store.cpu_gib:g} GiB"
    draft.word(f"-global_segment_size={int(store.cpu_gib * GIB)}", why=why)
    if store.disk_gib:
        draft.word("-enable_offload=true", why="blocks go on to disk")
        draft.env.add("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", escape(store.disk_path), "the disk tier")
        limit = int(store.disk_gib * GIB)
        draft.env.add("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", limit, "the room of the disk tier")
    draft.said(store.client_args)
    return draft


def attach(plan: Plan, engine: Engine, draft: Draft) -> None:
    """The file and the environment by which an engine finds the store; neither on a node out of scope."""
    store = plan.recipe.kv_cache_offload
    if store is None:
        return
    if not in_scope(plan.recipe, engine):
        draft.notes.append(f"no store: {engine.role} is not in kv_cache_offload.roles")
        return
    master = nodes_in_scope(plan.recipe)[0]
    config = {
        "mode": "standalone-store",
        "metadata_server": _metadata(master),
        "master_server_address": f"{{host:{master}}}:{{port:{MASTER}/rpc}}",
        "protocol": store.protocol,
        "device_name": escape(store.device),
        "global_segment_size": 0,
        "local_buffer_size": int(store.local_buffer_gib * GIB),
        "enable_offload": bool(store.disk_gib),
    }
    path = f"{draft.name}/mooncake.json"
    draft.files[path] = template(config) + "\n"
    why = "memory is given by the client on this node, none by the ranks (standalone-store)"
    draft.env.add("MOONCAKE_CONFIG_PATH", f"{{run}}/{path}", why)


def connectors(plan: Plan, engine: Engine) -> list[dict[str, Any]]:
    """What vLLM moves KV with, in the order in which it asks: the other leg, the store, the pool of HiSparse."""
    recipe, both = plan.recipe, {"kv_role": "kv_both"}
    found: list[dict[str, Any]] = []
    if engine.role != "mixed":
        backend = recipe.transfer.backend or "NixlConnector"
        found.append({"kv_connector": backend, **both})
    if in_scope(recipe, engine):
        found.append({"kv_connector": CONNECTOR, **both})
    if recipe.hisparse is not None and engine.role != "prefill" and plan.release.hisparse == "connector":
        pool = {"host_pool_gib": recipe.hisparse.host_pool_gib}
        found.append({"kv_connector": "HiSparseConnector", **both, "kv_connector_extra_config": pool})
    return found


def transfer_config(found: list[dict[str, Any]]) -> dict[str, Any] | None:
    """One connector as it is, several inside a MultiConnector, none as None."""
    if len(found) < 2:
        return found[0] if found else None
    extra = {"connectors": found}
    return {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


def _metadata(master: int) -> str:
    return f"http://{{host:{master}}}:{{port:{MASTER}/metadata}}/metadata"
