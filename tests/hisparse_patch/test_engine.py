"""What the bench of a whole engine plans, and what it makes of two sides' numbers. The engine runs on a GPU only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def sized(bench: Any, *arguments: str) -> Any:
    engine = bench("engine")
    return engine.sizes(engine.parsed(list(arguments)), 4096)


def test_loaded_gives_hot_no_more_of_the_gpu_than_stock(bench: Any) -> None:
    models, plan = bench("models"), sized(bench, "loaded")
    token = models.mla_bytes(plan.model, "fp8") + models.indexer_bytes(plan.model)
    assert plan.stock_bytes // (models.BLOCK * token) == plan.holds * plan.blocks + 1
    assert plan.seats == 8 * plan.holds
    left = plan.stock_bytes - plan.hot_rows_bytes
    assert left // (models.BLOCK * models.indexer_bytes(plan.model)) >= plan.seats * plan.blocks + 1
    assert plan.accounts()["hot_bytes_needed_of_stocks"] < 1


def test_what_hot_buffers_take_is_not_less_than_what_they_take(bench: Any) -> None:
    plan = sized(bench, "loaded")
    rows = 32 * 4160 * 656 * 16
    tags = 32 * 4160 * 6 * 16
    assert rows + tags < plan.hot_rows_bytes < 1.05 * (rows + tags)


def test_each_request_has_room_for_all_that_is_decoded(bench: Any) -> None:
    for mode in ("loaded", "fits"):
        engine = bench("engine")
        options = engine.parsed([mode])
        plan = engine.sizes(options, 4096)
        filling = plan.seats * plan.context / options.tokens_a_step
        timed = len(plan.batches) * len(options.patterns) * (options.settle + options.steps + 4)
        assert plan.tokens > filling + timed
        assert plan.blocks * 64 >= plan.context + plan.tokens == plan.longest


def test_sides_differ_in_memory_alone(bench: Any, tmp_path: Path) -> None:
    engine, models = bench("engine"), bench("models")
    for mode in ("loaded", "fits"):
        options = engine.parsed([mode])
        plans = [engine.sizes(options, slots) for slots in (4096, 16384)]
        asked = engine.asked_of(plans, options, tmp_path)
        stock = asked.pop("stock")
        assert list(asked) == ["hot-4096", "hot-16384"]
        for plan, hot in zip(plans, asked.values(), strict=True):
            assert {key for key in hot if hot[key] != stock[key]} <= {"kv_bytes", "pool_gib", "slots"}
            pool = int(hot["pool_gib"] * 2**30)
            assert pool // (models.BLOCK * models.mla_bytes(plan.model, "fp8")) == plan.seats * plan.blocks + 1
            assert (hot["compile"], hot["slots"]) == (mode == "fits", plan.slots)
            assert set(plan.batches) <= set(hot["sizes"])


def test_every_fourth_layer_has_an_indexer(bench: Any) -> None:
    models = bench("models")
    assert models.indexers(sized(bench, "fits").model) == 4
    assert models.indexers(models.shaped("glm", 78)) == 21  # as GLM-5.2's own config says
    assert models.indexers(models.shaped("glm")) == 4
    assert models.indexers(models.shaped("deepseek")) == 4


def line(side: str, mode: str = "loaded", **more: Any) -> dict[str, Any]:
    found = {
        "kind": "steps",
        "side": side,
        "mode": mode,
        "slots": None if side == "stock" else 4096,
        "batch": 32,
        "pattern": "slow",
        "running": 32 if side == "hot" or mode == "fits" else 4,
        "gpu_ms": 8.0 if side == "hot" else 4.0,
        "wall_ms": 10.0 if side == "hot" else 5.0,
        "tokens_per_s": 3200.0 if side == "hot" else 800.0,
        "miss_rate": 0.05 if side == "hot" else None,
        "refused": 0,
    }
    return found | more


ENDS = [{"kind": "end", "side": side, "preempted": 0} for side in ("stock", "hot")]


def test_ratios_of_loaded(bench: Any) -> None:
    (ratio,) = bench("engine").ratios([line("stock"), line("hot"), *ENDS])
    assert (ratio["throughput"], ratio["throughput_of_gpu_time"], ratio["reached"]) == (4.0, 4.0, True)
    assert (ratio["stock_running"], ratio["hot_running"], ratio["miss_rate"]) == (4, 32, 0.05)


@pytest.mark.parametrize(
    ("more", "preempted"), [({"tokens_per_s": 2399.0}, 0), ({"gpu_ms": 10.7}, 0), ({}, 1), ({}, None)]
)
def test_loaded_is_not_reached(bench: Any, more: dict[str, float], preempted: int | None) -> None:
    ends = [] if preempted is None else [{"kind": "end", "side": "hot", "preempted": preempted}]
    (ratio,) = bench("engine").ratios([line("stock"), line("hot", **more), *ends])
    assert ratio["reached"] is False


def test_ratios_of_fits(bench: Any) -> None:
    engine = bench("engine")
    stock = line("stock", "fits")
    (ratio,) = engine.ratios([stock, line("hot", "fits", gpu_ms=4.2, wall_ms=5.1)])
    assert ratio["reached"] and (round(ratio["gpu"], 3), round(ratio["wall"], 3)) == (1.05, 1.02)
    for more in ({"gpu_ms": 4.21, "wall_ms": 5.0}, {"gpu_ms": 4.0, "wall_ms": 5.3}):
        (ratio,) = engine.ratios([stock, line("hot", "fits", **more)])
        assert ratio["reached"] is False


def test_batches_and_patterns_are_not_mixed_up(bench: Any) -> None:
    lines = [line("stock", "fits"), line("hot", "fits", batch=8), line("hot", "fits", pattern="fast")]
    assert bench("engine").ratios(lines) == []


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([line("hot", refused=2)], "refused"),
        ([line("hot", miss_rate=None)], "selected no row"),
        (
            [
                {"kind": "facts", "side": "stock", "mode": "loaded", "gpu_kv_bytes": 5},
                {"kind": "facts", "side": "hot", "mode": "loaded", "gpu_kv_bytes": 6},
            ],
            "hot had 6 bytes",
        ),
    ],
)
def test_what_is_unfair_is_said(bench: Any, lines: list[dict[str, Any]], reason: str) -> None:
    (found,) = bench("engine").ratios(lines)
    assert found["kind"] == "unfair" and reason in found["reason"]


def test_prompts_share_no_block(bench: Any) -> None:
    pytest.importorskip("torch", reason="the module steps an engine of torch")
    steady = bench("steady")
    first = {tuple(steady.prompt(number, 64)) for number in range(96)}
    assert len(first) == 96
    assert all(0 <= token < 4096 for token in steady.prompt(95, 500))
