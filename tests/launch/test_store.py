"""The Mooncake store: which nodes take part, what each gets, and how vLLM's connectors are composed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from recipes import VLLM, component, json_value, recipe, rendered

from graftwork.errors import CatalogError
from graftwork.launch.deployment import render_json
from graftwork.launch.recipe_file import load_recipe
from graftwork.launch.store import nodes_in_scope

TWO = {**VLLM, "replicas": 2, "prefill": {"nodes": 2, "tp": 8}, "decode": {"nodes": 1, "tp": 8}}
STORE: dict[str, Any] = {"cpu_gib": 100}


@pytest.mark.parametrize(
    ("roles", "nodes", "master"),
    [
        (None, [0, 1, 2, 3, 4, 5], 0),
        (["prefill", "decode"], [0, 1, 2, 3, 4, 5], 0),
        (["prefill"], [0, 1, 3, 4], 0),
        (["prefill", "prefill"], [0, 1, 3, 4], 0),
        (["decode"], [2, 5], 2),
    ],
)
def test_scope(roles: list[str] | None, nodes: list[int], master: int) -> None:
    store = {**STORE, "roles": roles} if roles else STORE
    assert nodes_in_scope(recipe(TWO, kv_cache_offload=store)) == nodes
    found = rendered(TWO, kv_cache_offload=store)
    clients = [each for each in found.deployment.components if each.role == "store-client"]
    assert [each.node for each in clients] == nodes
    assert component(found, "store-master").node == master
    for each in found.deployment.components:
        if each.role in ("prefill", "decode"):
            inside = each.node in nodes
            names = json_value(found, each.name, "--kv-transfer-config")
            assert ("MOONCAKE_CONFIG_PATH" in each.env) is inside
            assert ("MooncakeStoreConnector" in json.dumps(names)) is inside
            assert bool(each.files) is inside


def test_default_roles_render_the_same_bytes_as_no_roles() -> None:
    without = rendered(TWO, kv_cache_offload=STORE)
    everyone = rendered(TWO, kv_cache_offload={**STORE, "roles": ["decode", "prefill"]})
    assert render_json(without.deployment) == render_json(everyone.deployment)
    assert without.as_dict() == everyone.as_dict()


def test_composition() -> None:
    found = rendered(VLLM, kv_cache_offload={**STORE, "roles": ["prefill"]})
    inside = json_value(found, "prefill-0", "--kv-transfer-config")
    assert inside["kv_connector"] == "MultiConnector"
    names = [each["kv_connector"] for each in inside["kv_connector_extra_config"]["connectors"]]
    assert names == ["NixlConnector", "MooncakeStoreConnector"]
    assert json_value(found, "decode-0", "--kv-transfer-config") == {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
    }
    mixed = rendered(VLLM, prefill=None, decode=None, mixed={"tp": 8}, kv_cache_offload=STORE)
    assert json_value(mixed, "mixed-0", "--kv-transfer-config")["kv_connector"] == "MooncakeStoreConnector"


def test_three_connectors_since_0_30() -> None:
    found = rendered(
        VLLM, version="0.33.0", kv_cache_offload=STORE, hisparse={"host_pool_gib": 10}, decode={"tp": 1, "seats": 8}
    )
    extra = json_value(found, "decode-0", "--kv-transfer-config")["kv_connector_extra_config"]
    names = [each["kv_connector"] for each in extra["connectors"]]
    assert names == ["NixlConnector", "MooncakeStoreConnector", "HiSparseConnector"]


def test_what_a_rank_reads() -> None:
    """The keys of vLLM's MooncakeStoreConfig; ranks of a standalone store give no memory of their own."""
    found = rendered(VLLM, kv_cache_offload={**STORE, "disk_gib": 5, "disk_path": "/nvme/s", "device": "mlx5_0"})
    prefill = component(found, "prefill-0")
    (path, text), *_ = prefill.files.items()
    assert prefill.env["MOONCAKE_CONFIG_PATH"] == "{run}/" + path
    assert prefill.env["PYTHONHASHSEED"] == "0"
    assert json.loads(text.replace("{{", "{").replace("}}", "}")) == {
        "mode": "standalone-store",
        "global_segment_size": 0,
        "local_buffer_size": 4 << 30,
        "metadata_server": "http://{host:0}:{port:store-master/metadata}/metadata",
        "master_server_address": "{host:0}:{port:store-master/rpc}",
        "protocol": "rdma",
        "device_name": "mlx5_0",
        "enable_offload": True,
    }
    client = component(found, "store-client-n1")
    assert f"-global_segment_size={100 << 30}" in client.argv and "-enable_offload=true" in client.argv
    assert client.env["MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"] == "/nvme/s"


def test_the_store_starts_first_and_stops_last() -> None:
    found = rendered(VLLM, kv_cache_offload=STORE, router={"kind": "vllm-router"})
    order = [each.name for each in found.deployment.on_node(0)]
    assert order == ["store-master", "store-client-n0", "prefill-0", "router"]
    assert "-default_kv_lease_ttl=3600000" in component(found, "store-master").argv
    assert not [word for word in component(found, "store-master").argv if "50051" in word or "9003" in word]


def test_roles_without_legs_apart_warn_and_change_nothing() -> None:
    base = {**VLLM, "prefill": None, "decode": None, "mixed": {"tp": 8}}
    base = {key: kept for key, kept in base.items() if kept is not None}
    plain = rendered(base, kv_cache_offload=STORE)
    narrowed = rendered(base, kv_cache_offload={**STORE, "roles": ["decode"]})
    assert plain.deployment.components == narrowed.deployment.components
    assert any("no effect" in text for text in narrowed.deployment.warnings)


def test_a_users_transfer_config_wins() -> None:
    mine = '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
    found = rendered(VLLM, kv_cache_offload=STORE, decode__args=["--kv-transfer-config", mine])
    assert json_value(found, "decode-0", "--kv-transfer-config") == json.loads(mine)
    assert json_value(found, "prefill-0", "--kv-transfer-config")["kv_connector"] == "MultiConnector"


def test_a_store_that_is_out_of_reach_is_told() -> None:
    mine = '{"kv_connector":"MooncakeStoreConnector","kv_role":"kv_both"}'
    store = {**STORE, "roles": ["prefill"]}
    said = ["--kv-transfer-config", mine]
    found = rendered(VLLM, kv_cache_offload=store, decode__args=said)
    assert any("decode-0: MooncakeStoreConnector" in text for text in found.deployment.warnings)
    own = {"MOONCAKE_CONFIG_PATH": "/etc/mooncake.json"}
    for changes in ({"decode__env": own, "decode__args": said}, {"prefill__args": said}):
        assert not rendered(VLLM, kv_cache_offload=store, **changes).deployment.warnings


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("cpu_gib = 8\nroles = []", "no role is in scope"),
        ("cpu_gib = 8\nroles = ['store']", "Invalid enum value 'store'"),
        ("disk_gib = 8\ndisk_path = '/d'", "disk alone is no tier"),
        ("cpu_gib = 8\ndisk_gib = 8", "belong together"),
    ],
)
def test_what_is_no_scope(tmp_path: Any, lines: str, says: str) -> None:
    file = tmp_path / "r.toml"
    file.write_text(
        'name = "r"\nsummary = "s"\nengine = "vllm"\nversion = "0.24.0"\n[model]\npath = "m"\nserved_name = "m"\n'
        "[node]\ngpus = 1\nmemory_gib = 9\ngpu_memory_gib = 9\n[mixed]\n[kv_cache_offload]\n" + lines
    )
    with pytest.raises(CatalogError, match=says) as caught:
        load_recipe(file, [])
    assert caught.value.line is not None and caught.value.line > 12
