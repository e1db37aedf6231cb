"""Fixtures: the bench (bench.py) for the tree under test, and every step of three ranks, run once."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from graftwork.harness.isolate import load_module


@pytest.fixture(scope="session")
def kit() -> ModuleType:
    """bench.py: `Bench`, `Step` and `Mode`. Loaded here, so that a missing torch is a skip."""
    pytest.importorskip("torch", reason="the vote needs torch and its gloo (a CPU build is enough)")
    return load_module(Path(__file__).with_name("bench.py"), "draft_graph_dp_vote_bench")


@pytest.fixture(scope="session")
def bench(kit: ModuleType, engine_tree: Path) -> Any:
    return kit.Bench(engine_tree)


@pytest.fixture(scope="session")
def outcome(kit: ModuleType, engine_tree: Path) -> Any:
    """``outcome(step)``: what each rank did in *step*, as a list; all steps are run in one life of the ranks."""
    from graftwork.harness.ranks import run_ranks

    every = list(itertools.product(("seeded", "seedless", "idle", "prebuilt"), repeat=3))
    steps = [kit.Step(ranks, overlap=overlap) for ranks in every for overlap in (True, False)]
    steps += [kit.Step(ranks, worker_seeds=False) for ranks in every]
    steps += [kit.Step(ranks, graphs_off=True) for ranks in every if "seedless" not in ranks]
    steps += [kit.Step(("seeded", "seedless", "seedless"), inactive=(1, 2)), kit.Step(("seeded",) * 3, inactive=(2,))]

    def work(rank: int) -> list[Any]:
        bench = kit.Bench(engine_tree)
        return [vars(bench.run(step, rank)) for step in steps]

    answers = run_ranks(work, 3)

    def look_up(step: Any) -> list[Any]:
        return [kit.Ran(**answer[steps.index(step)]) if isinstance(answer, list) else answer for answer in answers]

    return look_up
