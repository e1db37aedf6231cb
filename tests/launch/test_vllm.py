"""vLLM legs: ranks, connectors, HiSparse by version, and what stopping needs."""

from __future__ import annotations

from typing import Any

import pytest
from recipes import HISPARSE_WHEEL, VLLM, component, json_value, rendered, value

from graftwork.errors import UsageError
from graftwork.launch.demands import Contents

SPARSE = {"host_pool_gib": 160, "device_buffer_size": 4096}


def test_one_rank_gets_no_data_parallel_argument() -> None:
    for ranks in ("together", "apart"):
        found = rendered(VLLM, decode={"tp": 8, "ranks": ranks})
        assert not [word for word in component(found, "decode-0").argv if word.startswith("--data-parallel")]


def test_ranks_together_on_two_nodes() -> None:
    found = rendered(VLLM, decode={"nodes": 2, "span": 2, "tp": 1, "dp": 16})
    head, other = component(found, "decode-0-n0"), component(found, "decode-0-n1")
    assert value(found, head.name, "--data-parallel-size") == "16"
    assert value(found, head.name, "--data-parallel-size-local") == "8"
    assert "--headless" not in head.argv and head.ready.kind == "http"
    assert "--headless" in other.argv and other.ready.kind == "none" and "http" not in other.ports
    assert value(found, other.name, "--data-parallel-start-rank") == "8"
    for each in (head, other):
        assert value(found, each.name, "--data-parallel-address") == "{host:1}"
        assert value(found, each.name, "--data-parallel-rpc-port") == "{port:decode-0-n0/dp-rpc}"
        assert each.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == f"{{port:{each.name}/nixl}}" and each.ports["nixl"] == 16


def test_a_process_for_each_rank() -> None:
    events = {"legs": ["decode"], "replay": True}
    found = rendered(VLLM, decode={"tp": 2, "dp": 4, "ranks": "apart", "seats": 8}, kv_events=events)
    ranks = [each for each in found.deployment.components if each.role == "decode"]
    assert [each.name for each in ranks] == [f"decode-0-r{rank}" for rank in range(4)]
    assert [each.gpus for each in ranks] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [value(found, each.name, "--data-parallel-rank") for each in ranks] == list("0123")
    assert len({each.env["VLLM_RPC_BASE_PATH"] for each in ranks}) == 1  # {tmp}, which is each one's own
    for each in ranks:
        assert value(found, each.name, "--data-parallel-size-local") == "1"
        assert each.ports["http"] == 1
        # The engine adds its rank to these, so all share the block of the first.
        assert each.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "{port:decode-0-r0/nixl}"
        config = json_value(found, each.name, "--kv-events-config")
        assert config["endpoint"] == "tcp://*:{port:decode-0-r0/kv-events}"
        assert config["replay_endpoint"] == "tcp://*:{port:decode-0-r0/kv-replay}"
    assert ranks[0].ports == {"http": 1, "dp-rpc": 1, "kv-events": 4, "kv-replay": 4, "nixl": 4}


def test_connectors_and_their_role() -> None:
    found = rendered(VLLM)
    for name in ("prefill-0", "decode-0"):
        assert json_value(found, name, "--kv-transfer-config") == {
            "kv_connector": "NixlConnector",
            "kv_role": "kv_both",
        }
    other = rendered(VLLM, transfer__backend="MooncakeConnector")
    assert json_value(other, "decode-0", "--kv-transfer-config")["kv_connector"] == "MooncakeConnector"
    assert not [name for name in component(other, "decode-0").env if "NIXL" in name]
    for none in ("mooncake", "MoRIIOConnector"):
        with pytest.raises(UsageError, match="pairs engines by one of NixlConnector"):
            rendered(VLLM, transfer__backend=none)
    mixed = rendered(VLLM, prefill=None, decode=None, mixed={"tp": 8})
    assert value(mixed, "mixed-0", "--kv-transfer-config") is None


def test_mooncake_between_engines_has_ports_of_its_own() -> None:
    """Each rank apart serves its introductions on VLLM_MOONCAKE_BOOTSTRAP_PORT; together, the first node does."""
    backend, router = {"backend": "MooncakeConnector"}, {"kind": "vllm-router"}
    apart = {"tp": 1, "dp": 2, "ranks": "apart"}
    found = rendered(VLLM, transfer=backend, prefill=apart, router=router)
    for name in ("prefill-0-r0", "prefill-0-r1", "decode-0"):
        assert component(found, name).env["VLLM_MOONCAKE_BOOTSTRAP_PORT"] == f"{{port:{name}/bootstrap}}"
        assert component(found, name).ports["bootstrap"] == 1
    argv = component(found, "router").argv
    assert value(found, "router", "--kv-connector") == "mooncake"
    assert argv[argv.index("--prefill") + 1 :][:2] == [
        "http://{host:0}:{port:prefill-0-r0/http}",
        "{port:prefill-0-r0/bootstrap}",
    ]
    wide = rendered(VLLM, transfer=backend, decode={"nodes": 2, "span": 2, "tp": 1, "dp": 16}, router=router)
    other = component(wide, "decode-0-n1")
    assert other.env["VLLM_MOONCAKE_BOOTSTRAP_PORT"] == "{port:decode-0-n0/bootstrap}"
    assert "bootstrap" not in other.ports
    assert value(rendered(VLLM, router=router), "router", "--kv-connector") is None


def test_hisparse_of_the_fork() -> None:
    found = rendered(VLLM, version=HISPARSE_WHEEL, hisparse=SPARSE, decode={"tp": 1, "dp": 8, "seats": 96})
    assert json_value(found, "decode-0", "--attention-config") == {
        "hisparse_config": {"host_pool_gib": 160.0, "device_buffer_size": 4096}
    }
    assert json_value(found, "decode-0", "--compilation-config") == {"cudagraph_mode": "FULL_DECODE_ONLY"}
    assert json_value(found, "decode-0", "--kv-transfer-config")["kv_connector"] == "NixlConnector"
    assert value(found, "prefill-0", "--attention-config") is None
    assert value(rendered(VLLM, version=HISPARSE_WHEEL), "decode-0", "--attention-config") is None


def test_hisparse_since_0_30_moved_into_a_connector() -> None:
    wanted = {**SPARSE, "eager_host_mirror": False}
    found = rendered(VLLM, version="0.33.0", hisparse=wanted, decode={"tp": 1, "dp": 8, "seats": 96})
    assert json_value(found, "decode-0", "--attention-config") == {
        "hisparse_config": {"device_buffer_size": 4096, "eager_host_mirror": False}
    }
    config = json_value(found, "decode-0", "--kv-transfer-config")
    pool = {"kv_connector": "HiSparseConnector", "kv_role": "kv_both"}
    nixl = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    assert config["kv_connector"] == "MultiConnector"
    assert config["kv_connector_extra_config"]["connectors"] == [
        nixl,
        {**pool, "kv_connector_extra_config": {"host_pool_gib": 160.0}},
    ]
    assert value(found, "decode-0", "--compilation-config") is None


def test_hisparse_of_our_patch_has_the_keys_of_the_fork_and_no_connectors() -> None:
    held = Contents(engine="vllm", version="0.24.0", patches=frozenset({"vllm/hisparse"}))
    alone = {"prefill": None, "decode": None, "mixed": {"tp": 1, "dp": 8, "seats": 96}, "hisparse": SPARSE}
    found = rendered(VLLM, held, **alone)
    assert json_value(found, "mixed-0", "--attention-config")["hisparse_config"]["host_pool_gib"] == 160.0
    with pytest.raises(UsageError, match="refuses KV connectors"):
        rendered(VLLM, held, hisparse=SPARSE, decode={"tp": 1, "dp": 8, "seats": 96})
    with pytest.raises(UsageError, match="is for CUDA"):
        rendered(VLLM, held, **alone, node__platform="rocm")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hisparse": SPARSE, "decode__seats": 8}, r"0\.24\.0 has no HiSparse"),
        ({"hisparse": SPARSE, "version": HISPARSE_WHEEL}, "HiSparse needs seats"),
        ({"hisparse": SPARSE, "version": HISPARSE_WHEEL, "node__arch": "aarch64"}, "not for aarch64"),
        ({"hisparse": SPARSE, "version": HISPARSE_WHEEL, "node__platform": "rocm"}, "is for CUDA"),
        ({"hisparse": SPARSE, "version": "0.33.0", "node__platform": "rocm"}, "is for CUDA"),
        ({"hisparse": {**SPARSE, "eager_host_mirror": True}, "version": HISPARSE_WHEEL}, "newer"),
        ({"hisparse": {**SPARSE, "host_to_device_ratio": 2}, "version": "0.33.0"}, "a key of SGLang"),
        ({"hisparse": {**SPARSE, "device_buffer_size": 1024}, "version": "0.33.0"}, "below the model's top-k"),
        ({"version": {"x86_64": "0.24.0"}, "node__arch": "aarch64"}, "no version for aarch64, only for x86_64"),
        ({"version": "0.25.0"}, r"no arguments are known of vllm 0\.25\.0"),
        ({"version": "zero"}, "zero"),
        ({"decode": {"nodes": 2, "span": 2, "tp": 1, "dp": 3}}, "do not spread|does not spread"),
        ({"decode": {"tp": 8, "dp": 2}}, "16 GPUs a node"),
        ({"kvd": {"command": ["k"], "memory_gib": 1, "disk_gib": 1, "disk_path": "/d"}}, "SGLang's hierarchical cache"),
    ],
)
def test_what_vllm_would_refuse(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        rendered(VLLM, **changes)


def test_a_wheel_by_architecture() -> None:
    version = {"x86_64": HISPARSE_WHEEL, "aarch64": "0.24.0"}
    assert rendered(VLLM, version=version).deployment.version == HISPARSE_WHEEL
    assert rendered(VLLM, version=version, node__arch="aarch64").deployment.version == "0.24.0"


def test_both_bounds_of_stopping_are_set_and_the_users_wins() -> None:
    found = rendered(VLLM)
    assert value(found, "decode-0", "--shutdown-timeout") == "600"
    assert component(found, "decode-0").env["VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS"] == "600"
    found = rendered(VLLM, decode__args=["--shutdown_timeout=650"], bounds={"drain_s": 1000})
    assert component(found, "decode-0").argv[-2:] == ["--shutdown-timeout", "650"]
    assert found.deployment.bounds.engine_s == component(found, "decode-0").drain_s == 650


def test_network_devices_are_all_of_the_node_unless_said() -> None:
    assert component(rendered(VLLM), "decode-0").env["UCX_NET_DEVICES"] == "{nics}"
    assert component(rendered(VLLM, transfer__devices="mlx5_0:1"), "decode-0").env["UCX_NET_DEVICES"] == "mlx5_0:1"
    said = rendered(VLLM, decode__env={"UCX_NET_DEVICES": "mlx5_1:1"})
    assert component(said, "decode-0").env["UCX_NET_DEVICES"] == "mlx5_1:1"


def test_mtp() -> None:
    found = rendered(VLLM, mtp={"steps": 2, "draft_model": "/d"})
    for name in ("prefill-0", "decode-0"):
        assert json_value(found, name, "--speculative-config") == {
            "method": "mtp",
            "num_speculative_tokens": 2,
            "model": "/d",
        }


WIDE = {"nodes": 2, "span": 2, "tp": 1, "dp": 16, "ep": True, "all_to_all": "deepep_low_latency", "seats": 96}


@pytest.mark.parametrize("version", ["0.24.0", HISPARSE_WHEEL, "0.33.0"])
@pytest.mark.parametrize("ranks", ["together", "apart"])
def test_with_everything_on_every_version_has_the_arguments(version: str, ranks: str) -> None:
    leg = {**WIDE, "ranks": ranks, "batch_tokens": 8192, "gpu_share": 0.8, "graph_batch": 64}
    found = rendered(
        VLLM,
        version=version,
        prefill=leg,
        decode=leg,
        mtp={"draft_model": "/d"},
        kv_events={"legs": ["prefill", "decode"], "replay": True, "block_size": 64},
        kv_cache_offload={"cpu_gib": 1, "disk_gib": 1, "disk_path": "/d"},
        router={"kind": "vllm-router"},
        model__context=1000,
        model__kv_dtype="fp8_ds_mla",
        model__reasoning_parser="glm45",
        model__tool_call_parser="glm47",
        model__trust_remote_code=True,
        **({} if version == "0.24.0" else {"hisparse": SPARSE}),
    )
    assert len(found.deployment.components) == (10 if ranks == "together" else 38)
