"""SGLang legs: what is derived for each role, and each rule of what must not be."""

from __future__ import annotations

from typing import Any

import pytest
from recipes import SGLANG, component, json_value, rendered, value

from graftwork.errors import UsageError
from graftwork.launch.demands import Contents, Demand
from graftwork.launch.draft import Explained
from graftwork.launch.render import Rendered

RADIX = "--disaggregation-decode-enable-radix-cache"
EVENTS = {"legs": ["prefill", "decode"]}
KVD = {"command": ["kvd"], "memory_gib": 64, "disk_gib": 100, "disk_path": "/nvme"}


def explained(found: Rendered, name: str) -> Explained:
    (one,) = [each for each in found.explained if each.component == name]
    return one


def test_ports_are_the_nodes_own_and_a_leg_has_its_dist_block() -> None:
    found = rendered(SGLANG, decode={"tp": 8, "dp": 8, "dp_attention": True, "seats": 96}, kv_events=EVENTS)
    prefill, decode = component(found, "prefill-0"), component(found, "decode-0")
    assert prefill.ports == {"http": 1, "bootstrap": 1, "kv-events": 1}
    assert decode.ports == {"http": 1, "dist": 14, "kv-events": 8}
    assert value(found, "decode-0", "--dist-init-addr") == "127.0.0.1:{port:dist}"
    assert value(found, "prefill-0", "--disaggregation-bootstrap-port") == "{port:bootstrap}"
    assert json_value(found, "decode-0", "--kv-events-config")["endpoint"] == "tcp://*:{port:kv-events}"
    digits = [word for each in (prefill, decode) for word in each.argv if word in ("30000", "8998", "5557", "8801")]
    assert not digits


def test_an_engine_over_two_nodes() -> None:
    found = rendered(SGLANG, decode={"nodes": 2, "span": 2, "tp": 16})
    assert found.deployment.nodes == 3
    for place, node in ((0, 1), (1, 2)):
        name = f"decode-0-n{place}"
        assert component(found, name).node == node
        assert value(found, name, "--node-rank") == str(place)
        assert value(found, name, "--dist-init-addr") == "{host:1}:{port:decode-0-n0/dist}"
        assert component(found, name).gpus == list(range(8))
    assert component(found, "decode-0-n0").ready.kind == "http"
    assert component(found, "decode-0-n1").ready.kind == "none"


@pytest.mark.parametrize(
    ("changes", "added", "because"),
    [
        ({"kv_events": EVENTS}, True, ""),
        ({}, False, "no KV events"),
        ({"kv_events": {"legs": ["prefill"]}}, False, "no KV events"),
        ({"kv_events": EVENTS, "transfer__backend": "nixl"}, False, "not mooncake"),
        ({"kv_events": EVENTS, "mtp": {}}, False, "rejects it beside --speculative-algorithm EAGLE"),
        ({"kv_events": EVENTS, "mtp": {"algorithm": "NEXTN"}}, False, "beside --speculative-algorithm NEXTN"),
        ({"kv_events": EVENTS, "mtp": {}, "version": "0.5.16"}, False, "0.5.16 rejects it"),
        ({"kv_events": EVENTS, "mtp": {}, "version": "0.5.23"}, True, ""),
        ({"kv_events": EVENTS, "mtp": {"algorithm": "NEXTN"}, "version": "0.5.23"}, True, ""),
        ({"kv_events": EVENTS, "mtp": {"algorithm": "STANDALONE"}, "version": "0.5.23"}, False, "rejects it"),
        ({"kv_events": EVENTS, "mtp": {"legs": ["prefill"]}}, True, ""),
        ({"kv_events": EVENTS, "decode__args": ["--speculative_algorithm=EAGLE"]}, False, "rejects it"),
        ({"kv_events": EVENTS, "decode__args": ["--disaggregation-transfer-backend", "mori"]}, False, "not mooncake"),
        ({"kv_events": EVENTS, "hisparse": {"host_pool_gib": 8}, "decode__seats": 8}, False, "HiSparse excludes"),
        ({"kv_events": EVENTS, "model__recurrent": True}, False, "sliding windows"),
        ({"decode__args": ["--kv-events-config={}"]}, True, ""),
        ({"kv_events": EVENTS, "decode__drop": ["--kv-events-config"]}, False, "no KV events"),
        ({"kv_events": EVENTS, "router": {"kind": "infera"}}, True, ""),
        ({"router": {"kind": "infera"}, "decode__args": ["--kv-events", "on"]}, True, ""),
        ({"kv_events": EVENTS, "router": {"kind": "infera"}, "decode__args": ["--kv_events=off"]}, False, "no KV ev"),
    ],
)
def test_the_radix_cache_of_a_decode_leg(changes: dict[str, Any], added: bool, because: str) -> None:
    found = rendered(SGLANG, **changes)
    assert (RADIX in component(found, "decode-0").argv) is added
    assert RADIX not in component(found, "prefill-0").argv
    notes = [note for note in explained(found, "decode-0").notes if RADIX in note]
    assert (not notes) is added and all(because in note for note in notes)


def test_a_users_radix_flag_is_never_removed() -> None:
    found = rendered(SGLANG, mtp={}, decode__args=[RADIX])
    assert component(found, "decode-0").argv.count(RADIX) == 1
    assert any(RADIX in text and "rejects it" in text for text in found.deployment.warnings)


def test_kvd_is_wired_into_prefill_only() -> None:
    found = rendered(SGLANG, kvd=KVD, prefill__hicache_gb=16)
    names = [each.name for each in found.deployment.components]
    assert names == ["kvd-n0", "prefill-0", "decode-0"]
    extra = json_value(found, "prefill-0", "--hicache-storage-backend-extra-config")
    assert extra["prefetch_threshold"] == 64 and extra["class_name"] == "InferaKvdBackend"
    assert value(found, "prefill-0", "--hicache-size") == "16"
    assert component(found, "prefill-0").env["INFERA_KVD_SOCKET"] == "{cache}/kvd-{port:kvd-n0/id}.sock"
    decode = component(found, "decode-0")
    assert not [
        word for word in [*decode.argv, *decode.env] if "hicache" in word or "KVD" in word or "hierarch" in word
    ]
    assert any("no kvd" in note for note in explained(found, "decode-0").notes)
    daemon = component(found, "kvd-n0")
    assert (daemon.ready.kind, daemon.order) == ("unix", 2) and "--max-bytes" in daemon.argv


def test_kvd_with_a_users_backend_leaves_it_and_warns_without_a_threshold() -> None:
    said = ["--hicache-storage-backend-extra-config", '{"backend_name":"x"}', "--hicache_storage_backend=mooncake"]
    found = rendered(SGLANG, kvd=KVD, prefill__hicache_gb=16, prefill__args=said)
    assert value(found, "prefill-0", "--hicache-storage-backend") == "mooncake"
    assert json_value(found, "prefill-0", "--hicache-storage-backend-extra-config") == {"backend_name": "x"}
    assert any("prefetch_threshold" in text for text in found.deployment.warnings)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kvd": KVD}, "kvd needs hicache_gb"),
        ({"decode__hicache_gb": 8}, "on a decode leg"),
        ({"kvd": KVD, "prefill__hicache_gb": 8, "decode__args": ["--disaggregation-decode-enable-offload-kvcache"]},
         "needs a storage backend"),
        ({"decode__args": ["--disaggregation-decode-enable-offload-kvcache"]}, "needs a storage backend"),
        ({"hisparse": {"host_pool_gib": 8}}, "HiSparse needs seats"),
        ({"hisparse": {"host_pool_gib": 8, "eager_host_mirror": True}, "decode__seats": 8}, r"vLLM 0\.30\.0"),
        ({"kv_cache_offload": {"cpu_gib": 8}}, "composes vLLM's connectors"),
        ({"prefill": {"tp": 8, "dp": 3, "dp_attention": True}}, "not a multiple"),
        ({"prefill": {"tp": 4, "dp": 2}}, "without dp_attention"),
        ({"prefill": {"tp": 16}}, "16 GPUs a node"),
        ({"version": "0.5.17"}, r"no arguments are known of sglang 0\.5\.17"),
    ],
)  # fmt: skip
def test_what_sglang_would_refuse_or_wedge_on(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        rendered(SGLANG, **changes)


def test_a_decode_leg_may_write_back_with_a_backend_of_its_own() -> None:
    said = ["--disaggregation-decode-enable-offload-kvcache", "--hicache_storage_backend", "mooncake"]
    found = rendered(SGLANG, kvd=KVD, prefill__hicache_gb=8, decode__args=said)
    assert value(found, "decode-0", "--hicache-storage-backend") == "mooncake"
    assert value(found, "prefill-0", "--hicache-storage-backend") == "dynamic"


def test_a_local_build_of_a_release_has_its_arguments_and_rules() -> None:
    found = rendered(SGLANG, version="0.5.23+rocm720", mtp={}, kv_events=EVENTS)
    assert RADIX in component(found, "decode-0").argv and found.deployment.version == "0.5.23+rocm720"


def test_a_users_hierarchical_cache_on_decode_is_left_with_a_warning() -> None:
    found = rendered(SGLANG, decode__args=["--enable-hierarchical-cache"])
    assert "--enable-hierarchical-cache" in component(found, "decode-0").argv
    assert any("hierarchical cache" in text for text in found.deployment.warnings)


def test_mtp_is_the_same_on_both_legs() -> None:
    found = rendered(SGLANG, mtp={"steps": 5, "draft_tokens": 6, "draft_model": "/models/d"})
    for name in ("prefill-0", "decode-0"):
        assert value(found, name, "--speculative-algorithm") == "EAGLE"
        assert value(found, name, "--speculative-num-steps") == "5"
        assert value(found, name, "--speculative-num-draft-tokens") == "6"
        assert value(found, name, "--speculative-draft-model-path") == "/models/d"


@pytest.mark.parametrize(("said", "warned"), [("--tp_size=4", True), ("--tp=4", True), ("--tp-size=8", False)])
def test_a_shape_of_the_users_is_told(said: str, warned: bool) -> None:
    found = rendered(SGLANG, decode__args=[said]).deployment
    assert ["--tp-size is the user's word" in text for text in found.warnings] == [True] * warned


def test_mtp_on_one_leg_warns() -> None:
    assert any("MTP on one leg" in text for text in rendered(SGLANG, mtp={"legs": ["decode"]}).deployment.warnings)
    assert not rendered(SGLANG, mtp={}).deployment.warnings


def test_the_devices_are_a_fact_for_the_node_to_fill_in() -> None:
    """Which ones a job was given is known only there."""
    found = component(rendered(SGLANG, prefill={"tp": 4}), "prefill-0")
    assert found.gpus == [0, 1, 2, 3] and not [name for name in found.env if name.endswith("VISIBLE_DEVICES")]


def test_hisparse_in_sglangs_keys() -> None:
    wanted = {"host_pool_gib": 8, "device_buffer_size": 4096, "host_to_device_ratio": 4}
    found = rendered(SGLANG, hisparse=wanted, decode__seats=96)
    assert json_value(found, "decode-0", "--hisparse-config") == {"device_buffer_size": 4096, "host_to_device_ratio": 4}
    assert value(found, "prefill-0", "--enable-hisparse") is None
    mixed = rendered(SGLANG, prefill=None, decode=None, mixed={"tp": 8, "seats": 8}, hisparse={"host_pool_gib": 8})
    assert value(mixed, "mixed-0", "--disable-radix-cache") == ""


def test_rocm_gets_its_kernels_from_the_image_or_the_node() -> None:
    for changes, contents in (({"node__platform": "rocm"}, Contents()), ({}, Contents(platform="rocm"))):
        found = rendered(SGLANG, contents, model__sparse=True, mtp={}, **changes)
        assert value(found, "decode-0", "--dsa-decode-backend") == "tilelang"
        assert value(found, "decode-0", "--disable-custom-all-reduce") == ""
    assert value(rendered(SGLANG, model__sparse=True), "decode-0", "--dsa-decode-backend") is None


def test_every_engine_gets_what_the_image_demands() -> None:
    demand = Demand("patch x: because", ("--json-model-override-args", '{"a":false}'), (("B", "1"),))
    found = rendered(SGLANG, Contents(demands=(demand,)))
    for name in ("prefill-0", "decode-0"):
        assert json_value(found, name, "--json-model-override-args") == {"a": False}
        assert component(found, name).env["B"] == "1"
        assert [line.reason for line in explained(found, name).environment if line.text == "B=1"] == [
            "patch x: because"
        ]
    with pytest.raises(UsageError, match="against what the image demands"):
        rendered(SGLANG, Contents(demands=(demand,)), decode__env={"B": "2"})


def test_behind_infera_the_wrapper_registers_and_publishes() -> None:
    found = rendered(SGLANG, kvd=KVD, prefill__hicache_gb=8, kv_events={}, router={"kind": "infera"})
    assert component(found, "prefill-0").argv[:3] == ["python3", "-m", "infera.engine.sglang"]
    assert value(found, "prefill-0", "--kv-events") == "on"
    assert value(found, "prefill-0", "--kv-events-config") is None
    assert value(found, "decode-0", "--kv-events") == "off"
    assert "--no-enable-kv-events" in component(found, "decode-0").argv
    assert value(found, "prefill-0", "--etcd-endpoint") == "{host:0}:{port:etcd/client}"
    assert value(found, "decode-0", "--infera-kvd-socket") is None
    assert [each.name for each in found.deployment.on_node(0)] == ["etcd", "kvd-n0", "prefill-0", "router"]
    assert "--kv-event-transport" in component(found, "router").argv


def test_a_user_may_speak_to_the_wrapper_only_where_there_is_one() -> None:
    said = ["--index-block-size", "128"]
    found = rendered(SGLANG, router={"kind": "infera", "etcd": "there:2379"}, prefill__args=said)
    assert value(found, "prefill-0", "--index-block-size") == "128"
    assert value(found, "prefill-0", "--etcd-endpoint") == "there:2379"
    assert "etcd" not in [each.name for each in found.deployment.components]
    with pytest.raises(UsageError, match="no argument --index-block-size"):
        rendered(SGLANG, prefill__args=said)


@pytest.mark.parametrize("version", ["0.5.15.post1", "0.5.16", "0.5.23"])
@pytest.mark.parametrize("kind", ["infera", "sglang-router"])
def test_with_everything_on_every_version_has_the_arguments(version: str, kind: str) -> None:
    leg = {"tp": 16, "dp": 16, "dp_attention": True, "nodes": 2, "span": 2, "ep": True, "all_to_all": "deepep"}
    leg |= {"seats": 96, "batch_tokens": 8192, "gpu_share": 0.8, "graph_batch": 64}
    found = rendered(
        SGLANG,
        version=version,
        prefill={**leg, "hicache_gb": 8},
        decode=leg,
        mtp={"draft_model": "/d"},
        kv_events={"legs": ["prefill", "decode"], "replay": True, "block_size": 64},
        kvd=KVD,
        router={"kind": kind},
        transfer={"backend": "mooncake", "devices": "mlx5_0"},
        hisparse={"host_pool_gib": 1, "device_buffer_size": 4096, "host_to_device_ratio": 2},
        node__platform="rocm",
        model__sparse=True,
        model__context=1000,
        model__kv_dtype="fp8_e4m3",
        model__reasoning_parser="glm45",
        model__tool_call_parser="glm47",
        model__trust_remote_code=True,
    )
    assert len(found.deployment.components) == (8 if kind == "infera" else 7)
