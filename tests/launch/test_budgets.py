"""Memory, seats and bounds are checked against the node before anything starts."""

from __future__ import annotations

from typing import Any

import pytest
from recipes import HISPARSE_WHEEL, SGLANG, VLLM, component, rendered

from graftwork.errors import PolicyError, UsageError

DECODE = {"tp": 1, "dp": 8, "seats": 96}
SPARSE = {**VLLM, "version": HISPARSE_WHEEL, "decode": DECODE, "hisparse": {"host_pool_gib": 160}}


def test_the_authors_example_fits() -> None:
    """8 ranks of 160 GiB are 1.25 TiB."""
    found = rendered(SPARSE)
    assert found.memory[1] == {"reserved": 64, "HiSparse, 8 ranks of 160": 1280}
    assert found.memory[0] == {"reserved": 64}


@pytest.mark.parametrize(
    ("base", "changes", "says"),
    [
        (SPARSE, {"hisparse__host_pool_gib": 256}, r"node 1 \(decode\): 2112 GiB .* HiSparse, 8 ranks of 256 2048"),
        (SPARSE, {"kv_cache_offload": {"cpu_gib": 1024}}, r"node 1 \(decode\): 2400 GiB .* store 1024"),
        (VLLM, {"kv_cache_offload": {"cpu_gib": 1910}}, r"node 0 \(prefill\)"),
        (SGLANG, {"prefill__hicache_gb": 270}, "HiCache, 8 ranks of 270 GB"),
        (SGLANG, {"node__reserved_gib": 2001}, "reserved 2001"),
        (SGLANG, {"prefill__hicache_gb": 8, "kvd": {"command": ["k"], "memory_gib": 1990, "disk_gib": 1,
                                                    "disk_path": "/d"}}, "kvd 1990"),
    ],
)  # fmt: skip
def test_a_node_without_the_memory(base: dict[str, Any], changes: dict[str, Any], says: str) -> None:
    with pytest.raises(PolicyError, match=says):
        rendered(base, **changes)


@pytest.mark.parametrize(
    ("base", "changes", "says"),
    [
        (SPARSE, {"decode__args": ["--attention-config.hisparse_config.host_pool_gib=256"]}, "8 ranks of 256 2048"),
        (SPARSE, {"decode__args": ["--max_num_seqs=1024"], "model__layers": 78}, "1024 seats of 380 MB"),
        (SPARSE, {"decode__args": ["--attention-config", '{"hisparse_config":{"host_pool_gib":250}}']}, "of 250 2000"),
        (SPARSE, {"version": "0.33.0", "hisparse__host_pool_gib": 256}, "8 ranks of 256 2048"),
        (VLLM, {"version": "0.33.0", "decode__args": ["--kv-transfer-config", '{"kv_connector":"HiSparseConnector",'
            '"kv_role":"kv_both","kv_connector_extra_config":{"host_pool_gib":300}}']}, "8 ranks of 300 2400"),
        (SGLANG, {"prefill__hicache_gb": 8, "prefill__args": ["--hicache_size=300"]}, "8 ranks of 300 GB"),
        (SGLANG, {"prefill__args": ["--enable-hierarchical-cache", "--hicache-size", "300"]}, "8 ranks of 300 GB"),
        (SGLANG, {"hisparse": {"host_pool_gib": 1}, "model__layers": 78, "decode__args": ["--max-running-req", "1024"]},
            "1024 seats of 380 MB"),
        (SGLANG, {"prefill__hicache_gb": 8, "kvd": {"command": ["k"], "memory_gib": 1, "disk_gib": 1, "disk_path": "/d",
            "args": ["--max-bytes", str(1990 << 30)]}}, "kvd 1990"),
    ],
)  # fmt: skip
def test_what_the_user_said_is_what_is_counted(base: dict[str, Any], changes: dict[str, Any], says: str) -> None:
    with pytest.raises(PolicyError, match=says):
        rendered(base, **changes)


@pytest.mark.parametrize("odd", ['{"hisparse_config":3}', '{"hisparse_config":{"host_pool_gib":"many"}}'])
def test_what_cannot_be_counted_is_left_to_the_engine(odd: str) -> None:
    assert rendered(SPARSE, decode__args=["--attention-config", odd]).memory[1] == {"reserved": 64}
    connectors = '{"kv_connector":"M","kv_connector_extra_config":{"connectors":3}}'
    found = rendered(VLLM, version="0.33.0", decode__args=["--kv-transfer-config", connectors])
    assert found.memory[1] == {"reserved": 64}


def test_a_store_kept_off_the_decode_nodes_fits() -> None:
    found = rendered(SPARSE, kv_cache_offload={"cpu_gib": 1024, "roles": ["prefill"]})
    assert sum(found.memory[0].values()) == 64 + 1024 + 8 * 4


@pytest.mark.parametrize(
    ("kv_dtype", "buffer", "mb"), [("auto", 4096, 379.6), ("fp8_ds_mla", 4096, 216.1), ("auto", None, 379.6)]
)
def test_bytes_of_a_seat(kv_dtype: str, buffer: int | None, mb: float) -> None:
    """Hot rows in 78 layers: 1,152 B in bf16, 656 B in fp8, 4,224 rows for a buffer of 4,096."""
    from recipes import recipe

    from graftwork.launch.hisparse import seat_bytes

    wanted = recipe(SPARSE, model__layers=78, model__kv_dtype=kv_dtype)
    assert round((seat_bytes(wanted, buffer) or 0) / 1e6, 1) == mb


def test_seats_beyond_their_budget_warn_and_beyond_the_gpu_are_refused() -> None:
    assert not rendered(SPARSE, model__layers=78, hisparse__seat_budget_gib=34).deployment.warnings
    found = rendered(SPARSE, model__layers=78, hisparse__seat_budget_gib=33)
    assert any("96 seats of 380 MB are 34 GiB of each GPU" in text for text in found.deployment.warnings)
    with pytest.raises(PolicyError, match="1024 seats of 380 MB are 362 GiB of each GPU, which has 131"):
        rendered(SPARSE, model__layers=78, decode__seats=1024)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"bounds": {"drain_s": 600}}, "engine 600 s < drain 600 s"),
        ({"bounds": {"lead_s": 900}}, "drain 900 s < lead 900 s"),
        ({"decode__args": ["--shutdown-timeout", "900"]}, "engine 900 s < drain 900 s"),
        ({"decode__args": ["--shutdown-timeout.x", "1"]}, "no argument"),
        ({"decode__env": {"VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "1300"}}, "engine 1300 s < drain"),
        ({"bounds": {"router_s": 200, "engine_s": 600, "store_s": 120}, "kv_cache_offload": {"cpu_gib": 1},
          "router": {"kind": "vllm-router"}}, "200 s [+] 600 s [+] 120 s, which is not less than drain_s, 900 s"),
    ],
)  # fmt: skip
def test_bounds_that_do_not_nest(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        rendered(VLLM, **changes)


def test_what_the_users_arguments_say_counts_for_every_program() -> None:
    grace = {"kind": "sglang-router", "args": ["--shutdown-grace-period-secs", "180"]}
    found = rendered(SGLANG, router=grace)
    assert component(found, "router").drain_s == 180
    with pytest.raises(UsageError, match=r"300 s \+ 600 s"):
        rendered(SGLANG, router={**grace, "args": ["--shutdown-grace-period-secs", "300"]})
    found = rendered(SGLANG, router={"kind": "infera", "etcd": "e:1"}, decode__args=["--drain-timeout", "700.5"])
    assert found.deployment.bounds.engine_s == component(found, "decode-0").drain_s == 701


def test_stages_that_are_not_there_take_no_time() -> None:
    found = rendered(VLLM, bounds={"router_s": 200, "engine_s": 600, "store_s": 200})
    assert found.deployment.bounds.drain_s == 900
    assert component(found, "decode-0").drain_s == 600
