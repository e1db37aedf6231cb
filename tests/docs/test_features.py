"""The feature matrix: each cell that says something links to a page, and what it claims is rendered here."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recipes import HISPARSE_WHEEL, SGLANG, VLLM, component, rendered, value
from toys import ROOT

from graftwork.errors import GraftworkError
from graftwork.launch.demands import Contents, Demand
from graftwork.launch.kubernetes import manifests
from graftwork.launch.kubernetes.cluster import Cluster
from graftwork.launch.render import Rendered
from graftwork.launch.slurm import write as write_slurm

APART = {"tp": 1, "dp": 2, "ranks": "apart"}
KVD = {"command": ["k"], "memory_gib": 1, "disk_gib": 1, "disk_path": "/d"}
STORE = {"cpu_gib": 1}
EVENTS = {"legs": ["prefill", "decode"], "block_size": 16}
DEMANDED = Contents(demands=(Demand("because", env=(("DEMANDED", "1"),)),))
CLUSTER = Cluster(image="registry.example/i@sha256:" + "0" * 64, gpu="nvidia.com/gpu")


def has(flag: str, name: str = "decode-0") -> Callable[[Rendered, Path], bool]:
    return lambda found, _: value(found, name, flag) is not None


def runs(name: str) -> Callable[[Rendered, Path], bool]:
    return lambda found, _: any(each.name == name for each in found.deployment.components)


Claim = tuple[dict[str, Any], Callable[[Rendered, Path], bool]]
# By feature: for each engine, what is rendered and what shows it. None: refused, or no key of the recipe asks for it.
CLAIMS: dict[str, tuple[Claim | None, Claim | None]] = {
    "prefill and decode apart": (({}, has("--disaggregation-mode")), ({}, has("--kv-transfer-config"))),
    "engines over several nodes": (
        ({"decode": {"nodes": 2, "span": 2, "tp": 16}}, has("--node-rank", "decode-0-n1")),
        ({"decode": {"nodes": 2, "span": 2, "dp": 2}}, has("--headless", "decode-0-n1")),
    ),
    "a process for each rank": (None, ({"decode": APART}, runs("decode-0-r1"))),
    "DP attention": (({"decode": {"tp": 8, "dp": 8, "dp_attention": True}}, has("--enable-dp-attention")), None),
    "MTP": (({"mtp": {}}, has("--speculative-algorithm")), ({"mtp": {}}, has("--speculative-config"))),
    "radix cache on decode beside MTP": (
        ({"version": "0.5.23", "mtp": {}, "kv_events": EVENTS}, has("--disaggregation-decode-enable-radix-cache")),
        None,
    ),
    "KV events": (
        ({"kv_events": EVENTS}, has("--kv-events-config")),
        ({"kv_events": EVENTS}, has("--kv-events-config")),
    ),
    "kv-aware routing by events": (
        ({"kv_events": EVENTS, "router": {"kind": "infera"}}, has("--kv-event-transport", "router")),
        (
            {"kv_events": EVENTS, "router": {"kind": "vllm-router", "policy": "kv_aware"}},
            has("--pd-kv-events", "router"),
        ),
    ),
    "routing by llm-d": (None, ({"router": {"kind": "llm-d", "epp_config": "a: b"}}, runs("sidecar-decode-0"))),
    "cache in main memory": (
        ({"prefill__hicache_gb": 1}, has("--hicache-size", "prefill-0")),
        ({"kv_cache_offload": STORE}, runs("store-client-n0")),
    ),
    "cache on disk": (
        ({"kvd": KVD, "prefill__hicache_gb": 1}, runs("kvd-n0")),
        (
            {"kv_cache_offload": {**STORE, "disk_gib": 1, "disk_path": "/d"}},
            lambda found, _: "-enable_offload=true" in component(found, "store-client-n0").argv,
        ),
    ),
    "store by role": (
        None,
        ({"kv_cache_offload": {**STORE, "roles": ["decode"]}}, lambda found, _: not runs("store-client-n0")(found, _)),
    ),
    "HiSparse": (
        ({"hisparse": {"host_pool_gib": 1}, "decode__seats": 8}, has("--enable-hisparse")),
        ({"version": HISPARSE_WHEEL, "hisparse": {"host_pool_gib": 1}, "decode__seats": 8}, has("--attention-config")),
    ),
    "demands of the image": (
        ({}, lambda found, _: component(found, "decode-0").env["DEMANDED"] == "1"),
        ({}, lambda found, _: component(found, "decode-0").env["DEMANDED"] == "1"),
    ),
    "Slurm": (
        ({}, lambda found, folder: write_slurm(found.deployment, folder)[0].is_file()),
        ({}, lambda found, folder: write_slurm(found.deployment, folder)[0].is_file()),
    ),
    "Kubernetes": (
        ({}, lambda found, _: len(manifests.manifests(found.deployment, CLUSTER)["items"]) > 2),
        ({}, lambda found, _: len(manifests.manifests(found.deployment, CLUSTER)["items"]) > 2),
    ),
}
# What an empty cell refuses, where a recipe can ask for it.
REFUSED: dict[str, tuple[dict[str, Any] | None, ...]] = {
    "a process for each rank": ({"kvd": None, "decode": {**APART, "tp": 8}}, None),
    "routing by llm-d": ({"router": {"kind": "llm-d", "epp_config": "a: b"}}, None),
    "store by role": ({"kv_cache_offload": {**STORE, "roles": ["decode"]}}, None),
}


def cells() -> dict[str, list[str]]:
    lines = [line for line in (ROOT / "docs/features.md").read_text().splitlines() if line.startswith("| ")]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]
    return {feature: rest for feature, *rest in found}


def test_the_matrix_and_the_claims_are_of_the_same_features() -> None:
    assert list(cells()) == list(CLAIMS)


@pytest.mark.parametrize("engine", [0, 1], ids=["sglang", "vllm"])
@pytest.mark.parametrize("feature", CLAIMS)
def test_a_cell_says_what_is_rendered(feature: str, engine: int, tmp_path: Path) -> None:
    cell, claim, base = cells()[feature][engine], CLAIMS[feature][engine], (SGLANG, VLLM)[engine]
    assert bool(cell) == (claim is not None)
    if claim is None:
        asked = REFUSED.get(feature, (None, None))[engine]
        if asked is not None:
            with pytest.raises(GraftworkError):
                rendered(base, **asked)
        return
    assert re.fullmatch(r"\[[^]]+\]\([a-z]+\.md(#[\w-]+)?\)", cell)
    changes, shows = claim
    assert shows(rendered(base, DEMANDED, **changes), tmp_path)


def test_a_version_in_a_cell_is_the_one_that_is_rendered() -> None:
    named = {feature: re.findall(r"\d+\.\d+\.\d+", "".join(row)) for feature, row in cells().items()}
    assert named["radix cache on decode beside MTP"] == ["0.5.23"]
    assert named["HiSparse"] == ["0.33.0"]
    found = rendered(VLLM, version="0.33.0", hisparse={"host_pool_gib": 1}, decode__seats=8)
    assert "HiSparseConnector" in (value(found, "decode-0", "--kv-transfer-config") or "")
