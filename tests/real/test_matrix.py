"""The matrix on the real wheels, cell by cell, as the patches were measured by hand; and the tests where they apply."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from graftwork.trees.cache import Cache
from graftwork.upstream.matrix_cells import Cell
from graftwork.upstream.releases import FirstUse

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("matrix")]

ROOT = Path(__file__).parents[2]
RELEASES = json.loads((Path(__file__).parent / "releases.json").read_text())
NAMES = list(RELEASES)
ROWS, ALLOC = "sglang/dsa-indexer-rows", "sglang/hicache-rocm-host-alloc"
SPAN = ">=0.5.13.post1,<=0.5.23"

# The anchors of the public script that these two patches replace stop matching at 0.5.20 (rows), and still match
# where the allocator's defect is fixed: there the patch must be obsolete, by its precondition.
EXPECTED = {
    ROWS: dict.fromkeys(NAMES, "pending") | dict.fromkeys(("0.5.13.post1", "0.5.14"), "drifted"),
    ALLOC: dict.fromkeys(NAMES, "pending") | dict.fromkeys(NAMES[NAMES.index("0.5.20") :], "obsolete"),
}


def matrix(*more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from graftwork.cli.main import run; run()", "matrix", "--versions", SPAN]
    for name in (ROWS, ALLOC):
        command += ["--patch", name]
    done = subprocess.run([*command, "--json", *more], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 6:
        pytest.skip(f"the package index is not reachable: {done.stderr}")
    return done


def cells_of(done: subprocess.CompletedProcess[str]) -> list[Cell]:
    """The cells of the releases that were measured; a later post release in the span is not among them."""
    cells = msgspec.convert(json.loads(done.stdout)["cells"], list[Cell])
    return [cell for cell in cells if cell.version in RELEASES]


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    done = matrix("--engine", "sglang")
    assert done.returncode == 0, done.stderr
    return cells_of(done)


@pytest.mark.parametrize("patch", [ROWS, ALLOC])
def test_the_states_cell_by_cell(cells: list[Cell], patch: str) -> None:
    assert {cell.version: cell.state for cell in cells if cell.patch == patch} == EXPECTED[patch]


def test_releases_come_in_order_and_each_wheel_says_why_it_is_believed(cells: list[Cell]) -> None:
    assert list(dict.fromkeys(cell.version for cell in cells)) == NAMES
    trust = {cell.version: cell.trust for cell in cells}
    assert trust["0.5.15.post1"] == trust["0.5.16"] == "lock"
    assert trust["0.5.14"] == "index"


def test_a_record_taken_at_first_use_is_the_one_that_is_known(cells: list[Cell]) -> None:
    """For the releases whose cp311 wheel stands for them, against hashes that whole wheels were checked with."""
    first = {cell.version: cell.wheel for cell in cells if cell.trust == "index" and "-cp311-" in cell.wheel}
    if not first:
        pytest.skip("no release is read at first use by its cp311 wheel any more")
    for version in first:
        assert FirstUse(Cache()).get(RELEASES[version]["wheel"]) == RELEASES[version]["record"]


def test_before_the_backend_object_it_is_compared_with_the_first_release_that_has_it(cells: list[Cell]) -> None:
    (cell,) = (c for c in cells if c.patch == ROWS and c.version == "0.5.14")
    (edit,) = (edit for edit in cell.edits if edit.moved)
    assert (edit.id, edit.first_applied) == ("rows", "0.5.15")
    assert edit.moved[0].was.endswith("dsa_indexer.py:897: if self.paged_mqa_logits_backend.is_aiter():")
    assert any("if _is_hip:" in line for line in edit.moved[0].diff)


def test_obsolete_names_what_fixed_it(cells: list[Cell]) -> None:
    fixed = [cell for cell in cells if cell.state == "obsolete"]
    assert all("defines make_kernel_ptr_table" in cell.reasons[0] for cell in fixed)


def test_a_second_run_moves_no_byte_of_a_wheel(cells: list[Cell]) -> None:
    again = cells_of(matrix())
    assert sum(cell.bytes for cell in again) == 0
    assert [(c.patch, c.version, c.state) for c in again] == [(c.patch, c.version, c.state) for c in cells]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is missing: tests of patches run on it")
def test_the_patches_tests_pass_on_every_release_where_they_apply(cells: list[Cell]) -> None:
    done = matrix("--run-tests")
    assert done.returncode == 0, done.stderr
    ran: dict[str, Any] = {f"{c.patch} {c.version}": c.tests for c in cells_of(done) if c.state == "pending"}
    assert len(ran) == 18
    assert all(tests is not None and tests.passed > 20 and not tests.failed for tests in ran.values()), ran
