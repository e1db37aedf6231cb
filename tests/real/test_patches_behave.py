"""Every SGLang patch of the catalog on twelve releases: its state there, and what its own tests say, fixed and stock.

The patch's tests (``patches/<engine>/<name>/tests``) execute the engine's text, each run in a process of its own. What
each hunk carries, and mutants, are judged by ``graftwork prove`` on the targets.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import pytest
from packaging.version import Version
from real.wheels import NAMES, wheel

from graftwork.catalog.catalog import Catalog, Patch
from graftwork.catalog.rules import edit_files
from graftwork.harness.outcomes import Kind, Outcome
from graftwork.harness.runner import Job, Run, run_all
from graftwork.harness.variants import Stage
from graftwork.names import RelPath
from graftwork.patching.assess import Engine, planned_files
from graftwork.patching.plan import plan
from graftwork.trees.tree import Tree

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("patches_behave")]
ROOT = Path(__file__).parents[2]
ROWS, ALLOC, TABLE = "sglang/dsa-indexer-rows", "sglang/hicache-rocm-host-alloc", "sglang/dsa-page-table-rows"
WAIT, STAGED = "sglang/mooncake-early-send-wait", "sglang/hicache-staged-write-back"
ELSEWHERE = {"sglang/dsa-dp-sync", "sglang/draft-graph-dp-vote"}  # test_dp_patches.py: several processes for each test


def states(**until: str) -> dict[str, str]:
    """State by release: each named state holds up to the release before the next one's."""
    found = {}
    for state, last in until.items():
        for version in NAMES[len(found) : NAMES.index(last) + 1]:
            found[version] = state.replace("_", "-")
    return found


LAST = NAMES[-1]
STATES = {
    ROWS: states(drifted="0.5.14", pending=LAST),
    ALLOC: states(pending="0.5.19", obsolete=LAST),
    TABLE: states(pending=LAST),
    WAIT: states(not_needed="0.5.14", pending="0.5.21", obsolete=LAST),
    STAGED: states(not_needed="0.5.15.post1", pending="0.5.16", obsolete=LAST),
}
APPLIES = {name: [version for version in row if row[version] == "pending"] for name, row in STATES.items()}
PENDING = [(name, version) for name, versions in APPLIES.items() for version in versions]
# The first and the last release with the defect: there the tests run to their end on the stock text too.
ENDS = [(name, version) for name, versions in APPLIES.items() for version in dict.fromkeys((versions[0], versions[-1]))]
# Releases that the rule calls obsolete, in whose stock text the patch's tests can run: they find nothing wrong.
FIXED_UPSTREAM = [(WAIT, "0.5.22"), (WAIT, "0.5.23"), (STAGED, "0.5.17")]
# What fails on the stock text, all of it and nothing else.
ROW_CASES = r"(values_and_rows|kernel_sees_\w+|shared_\w+|forced_tokens|wrong_rows_\w+|fused_\w+)"
BREAKS = {
    ROWS: rf"test_rows.py::test_(any_row_counts|{ROW_CASES}\[.*(trim|clip)-.*)",
    ALLOC: r"test_routing.py::test_(rocm_pins_every_key\[(?!npu|musa).*|a_registration\w+\[hip\])"
    r"|test_bypassed_allocators.py::test_(each_bypassed|an_allocator|the_default\w+\[default).*",
    TABLE: r"test_lookup.py::test_(any_padding|(each_request\w+|the_plan\w+)\[\d-to-\d.*)",
    WAIT: r"test_early_send.py::test_(a_prefix|each_early|requests_that|only_the_forward|the_scheduler|a_request).*",
    STAGED: r"test_write_back.py::test_(a_dsa_group\w+\[page_first-hip|the_draft_pool\w+\[hip)\]",
}
BREAKS_EARLIER = {
    (ROWS, "P1V2"): rf"test_rows.py::test_(any_row_counts|{ROW_CASES}\[.*clip-.*|wrong_rows_\w+\[.*trim-.*)",
}
# Tests that have nothing to judge in older releases: no init and local tokens; no granularity, no shared memory.
SKIPS_BEFORE = {ROWS: "0.5.16", ALLOC: "0.5.19"}
Key = tuple[str, str, str]


def ids(pairs: list[tuple[str, str]]) -> list[str]:
    return [f"{name.partition('/')[2]}-{version}" for name, version in pairs]


class Watched:
    """A tree that notes which files it was asked for."""

    def __init__(self, tree: Tree) -> None:
        self.tree, self.origin, self.asked = tree, tree.origin, set[str]()

    def read(self, path: RelPath) -> bytes:
        self.asked.add(path)
        return self.tree.read(path)

    def exists(self, path: RelPath) -> bool:
        self.asked.add(path)
        return self.tree.exists(path)

    def paths(self) -> Iterable[RelPath]:
        return self.tree.paths()


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return Catalog(ROOT)


def test_every_patch_is_judged_here_or_beside(catalog: Catalog) -> None:
    assert set(STATES) | ELSEWHERE == {name for name in catalog.patch_ids if name.startswith("sglang/")}
    assert set(BREAKS_EARLIER) == {(name, old.id) for name in STATES for old in catalog.patch(name).earlier}


@pytest.mark.parametrize("version", NAMES)
def test_states(catalog: Catalog, version: str) -> None:
    engine = Engine(Version(version), "rocm")
    with wheel(version) as tree:
        for name, row in STATES.items():
            patch, watched = catalog.patch(name), Watched(tree)
            found = plan(watched, [patch], engine)
            (item,) = found.patches
            assert (name, item.state.value, item.problems) == (name, row[version], ())
            assert bool(found.changes) == (row[version] == "pending")
            assert watched.asked <= planned_files(patch, engine)


@pytest.fixture(scope="module")
def runs(catalog: Catalog) -> dict[Key, Run]:
    """(patch, release, variant) to what the patch's tests said: ``in``, ``out`` or the id of an earlier revision."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is missing: the engine's functions are executed on the CPU (pip install torch)")
    return dict(run_all(jobs(catalog), 2, preload=["torch"]))


def jobs(catalog: Catalog) -> Iterator[tuple[Key, Job]]:
    for name, version in PENDING + FIXED_UPSTREAM:
        patch, whole = catalog.patch(name), (name, version) in ENDS + FIXED_UPSTREAM
        with wheel(version) as tree:
            for which, files in variants(patch, version, tree):
                first = frozenset[Kind]() if which == "in" or whole else frozenset[Kind]({"assertion"})
                yield (name, version, which), Job(patch.folder / "tests", files, "sglang", version, first)


def variants(patch: Patch, version: str, tree: Tree) -> Iterator[tuple[str, dict[str, bytes]]]:
    """The files for the tests: ``in`` and ``out``, at both ends each earlier revision; ``out`` where it is obsolete."""
    if STATES[patch.id][version] == "obsolete":
        wanted = {*patch.spec.reads, "sglang/_version.py"}.union(
            *(edit_files(e, patch.folder) for e in patch.spec.edit)
        )
        paths = [path for path in map(RelPath, sorted(wanted)) if tree.exists(path)]
        yield "out", {path: tree.read(path) for path in paths}
        return
    made = Stage(plan(tree, [patch], Engine(Version(version), "rocm")), tree, patch, ()).variants()
    for variant in islice(made, None if patch.earlier and (patch.id, version) in ENDS else 2):
        if variant.sort in ("in", "out", "earlier"):
            yield variant.name if variant.sort == "earlier" else variant.sort, variant.files


def failed(run: Run) -> dict[str, str]:
    """Test (file and id) to its error, for every test that failed for whatever reason."""
    return {name_of(each): each.error for each in run.of("assertion", "engine", "broken")}


def name_of(outcome: Outcome) -> str:
    return outcome.test.rpartition("tests/")[2]


@pytest.mark.parametrize(("name", "version"), PENDING, ids=ids(PENDING))
def test_fixed_where_patched(runs: dict[Key, Run], name: str, version: str) -> None:
    run = runs[name, version, "in"]
    assert (run.trouble, failed(run)) == ("", {})
    assert len(run.of("passed")) > 10
    older = name in SKIPS_BEFORE and Version(version) < Version(SKIPS_BEFORE[name])
    assert bool(run.of("skipped")) == older


@pytest.mark.parametrize(("name", "version"), PENDING, ids=ids(PENDING))
def test_broken_where_stock(runs: dict[Key, Run], name: str, version: str) -> None:
    run = runs[name, version, "out"]
    assert run.of("assertion") and not run.of("broken") and not run.trouble


@pytest.mark.parametrize(("name", "version"), ENDS, ids=ids(ENDS))
def test_stock_fails_by_the_defect_and_nothing_else(runs: dict[Key, Run], name: str, version: str) -> None:
    fails_all_and_only(runs[name, version, "out"], BREAKS[name])


@pytest.mark.parametrize("end", [0, -1], ids=["first", "last"])
@pytest.mark.parametrize(("name", "old"), BREAKS_EARLIER, ids=[f"{name[7:]}-{old}" for name, old in BREAKS_EARLIER])
def test_an_earlier_revision_fails_what_it_lacks_and_nothing_else(
    runs: dict[Key, Run], name: str, old: str, end: int
) -> None:
    fails_all_and_only(runs[name, APPLIES[name][end], old], BREAKS_EARLIER[name, old])


def fails_all_and_only(run: Run, pattern: str) -> None:
    every = {name_of(each) for each in run.outcomes if each.kind != "skipped"}
    expected = {test for test in every if re.fullmatch(pattern, test)}
    assert expected and set(failed(run)) == expected
    assert not run.of("broken")


@pytest.mark.parametrize(("name", "version"), FIXED_UPSTREAM, ids=ids(FIXED_UPSTREAM))
def test_nothing_is_wrong_where_upstream_has_the_fix(runs: dict[Key, Run], name: str, version: str) -> None:
    assert STATES[name][version] == "obsolete"
    run = runs[name, version, "out"]
    assert (run.trouble, failed(run)) == ("", {})
    assert len(run.of("passed")) > 10
