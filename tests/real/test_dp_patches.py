"""The two patches about DP ranks on twelve releases: their states, and what their tests say, fixed and stock."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from packaging.version import Version
from real.wheels import NAMES, wheel

from graftwork.catalog.catalog import Catalog
from graftwork.harness.runner import Job, Run, run_all
from graftwork.harness.variants import Stage
from graftwork.patching.assess import Engine
from graftwork.patching.plan import plan

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("dp_patches")]
ROOT = Path(__file__).parents[2]
SYNC, VOTE = "sglang/dsa-dp-sync", "sglang/draft-graph-dp-vote"


def between(first: str, last: str) -> list[str]:
    return NAMES[NAMES.index(first) : NAMES.index(last) + 1]


EXPECTED = {
    SYNC: {
        **dict.fromkeys(between("0.5.13.post1", "0.5.14"), "not-needed"),
        **dict.fromkeys(between("0.5.15", "0.5.23"), "pending"),
    },
    VOTE: {
        **dict.fromkeys(between("0.5.13.post1", "0.5.15"), "not-needed"),
        **dict.fromkeys(between("0.5.15.post1", "0.5.20"), "pending"),
        **dict.fromkeys(between("0.5.21", "0.5.23"), "obsolete"),
    },
}
APPLIES = [(name, version) for name, row in EXPECTED.items() for version in row if row[version] == "pending"]


@pytest.mark.parametrize("version", NAMES)
def test_the_states(version: str) -> None:
    catalog, engine = Catalog(ROOT), Engine(Version(version), "rocm")
    with wheel(version) as tree:
        found = {name: plan(tree, [catalog.patch(name)], engine) for name in EXPECTED}
    assert {name: item.patches[0].state.value for name, item in found.items()} == {
        name: row[version] for name, row in EXPECTED.items()
    }
    assert not any(item.patches[0].problems for item in found.values())


@pytest.fixture(scope="module")
def runs() -> dict[tuple[str, str, str], Run]:
    """The patch's tests on every release where it applies, with the patch (``in``) and without (``out``)."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is missing: the tests of the patches run the engine's functions on the CPU")
    catalog, jobs = Catalog(ROOT), []
    for name, version in APPLIES:
        patch = catalog.patch(name)
        with wheel(version) as tree:
            variants = Stage(plan(tree, [patch], Engine(Version(version), "rocm")), tree, patch, ()).variants()
            for variant, enough in ((next(variants), frozenset()), (next(variants), frozenset({"assertion"}))):
                job = Job(patch.folder / "tests", variant.files, "sglang", version, enough)
                jobs.append(((name, version, variant.sort), job))
    return dict(run_all(jobs, 2, preload=["torch"]))


@pytest.mark.parametrize(("name", "version"), APPLIES, ids=[f"{name[7:]}-{version}" for name, version in APPLIES])
def test_fixed_where_patched_and_broken_where_stock(runs, name: str, version: str) -> None:
    fixed, stock = runs[name, version, "in"], runs[name, version, "out"]
    assert (fixed.trouble, fixed.of("assertion", "engine", "broken", "skipped")) == ("", [])
    assert len(fixed.of("passed")) > 20
    assert stock.of("assertion") and not stock.of("broken")
