"""Weakened copies of the real patches' tests on the real pinned tree: each makes the harness red, for its own reason.

That the tests as they are make it green is what ``graftwork prove`` itself says in CI, for every target.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest
from proving import Some
from toys import ROOT

from graftwork.catalog.catalog import Catalog
from graftwork.cli.options import engine_of, pinned_wheel
from graftwork.errors import UnreachableError
from graftwork.harness.prove import Row, prove
from graftwork.harness.variants import Sort
from graftwork.patching.plan import plan
from graftwork.ui import Screen

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None,
        reason="torch is missing: the engine's functions are executed on the CPU (pip install torch)",
    ),
]
TARGET = "rocm-gfx950"
ROWS, ALLOC = "dsa-indexer-rows", "hicache-rocm-host-alloc"


class Copy:
    """The catalog with one patch's tests in a folder of their own, to be weakened."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name = root, f"sglang/{name}"
        shutil.copytree(ROOT / "patches", root / "patches", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "deploy/docker", root / "deploy/docker")
        self.tests = root / "patches/sglang" / name / "tests"

    def weaken(self, file: str, *changes: tuple[str, str]) -> Copy:
        """Replace each pattern, which must be found; an empty list of changes drops the file."""
        path = self.tests / file
        if not changes:
            path.unlink()
            return self
        text = path.read_text("utf-8")
        for old, new in changes:
            text, count = re.subn(old, new, text, flags=re.S)
            assert count, f"{old!r} is not in {file}"
        path.write_text(text, "utf-8")
        return self

    def prove(self, sorts: Collection[Sort]) -> dict[str, Row]:
        catalog = Catalog(self.root)
        target = catalog.target(TARGET)
        try:
            with pinned_wheel(target, catalog.lock(target), Screen(quiet=True)) as tree:
                planned = plan(tree, catalog.patches(target), engine_of(target, None, None), target.optional)
                (patch,) = (item.patch for item in planned.pending if item.patch.id == self.name)
                stage = Some(planned, tree, patch, catalog.mutants(patch), sorts=sorts)
                rows = list(prove([(TARGET, stage)], at_once=2, preload=["torch"]))
        except UnreachableError as error:
            pytest.skip(f"the package index is not reachable: {error}")
        return {row.variant.name: row for row in rows}


CLIPS = (r"\nCLIP = \{.*?\n\}\n", "\nCLIP = {}\n")
PROPERTY = (r"\n@settings\(.*?assert result.identity_kept\n", "\n")
MARKERS_ONLY = """def test_marker(engine_tree):
    text = (engine_tree / "sglang/srt/mem_cache/pool_host/common.py").read_text()
    assert "_rocm_pinned_host_pools" in text
"""

WEAKENED: dict[str, tuple[str, Sequence[tuple[str, Sequence[tuple[str, str]]]], Sort, dict[str, str]]] = {
    "one direction only": (
        ROWS,
        [("test_rows.py", [CLIPS, PROPERTY])],
        "hunk",
        {"rows[3]": r"nothing notices that this hunk is missing: \d+ pass"},
    ),
    "the defect is not named": (
        ROWS,
        [
            ("bench.py", [(r"with defect\(RuntimeError, match=DEFECT\), self", "with self")]),
            ("test_rows.py", [(r"\n@pytest.mark.parametrize\(\"error\".*?\n\n\n", "\n"), PROPERTY]),
        ],
        "out",
        {"patch out": r"ends in an error of the engine in its call \(RuntimeError: Expected lengths.size\(0\) == B"},
    ),
    "no word of what is bypassed": (
        ALLOC,
        [("test_bypassed_allocators.py", [])],
        "mutant",
        {
            "warns-each-time": r"no test fails of it: \d+ pass",
            "subclasses-count-as-default": r"no test fails of it: \d+ pass",
        },
    ),
    "the result is not looked at": (
        ALLOC,
        [
            ("test_routing.py", [(r"assert (\w+)\.events == [^\n]+", r"assert \1.events")]),
            ("test_bypassed_allocators.py", []),
        ],
        "out",
        {"patch out": r"no test fails by its own assertion: \d+ pass"},
    ),
    "markers only": (
        ALLOC,
        [("test_bypassed_allocators.py", []), ("test_routing.py", [(r"@pytest.*", MARKERS_ONLY)])],
        "markers",
        {"markers, stock logic": r"no test fails by its own assertion: 1 pass"},
    ),
    "all skipped": (
        ALLOC,
        [("conftest.py", [(r'importorskip\("torch"', 'importorskip("no_such_torch"')])],
        "in",
        {"all in": r"no test passes on the patched tree: \d+ are skipped \("},
    ),
}


@pytest.mark.parametrize("name", WEAKENED)
def test_weakened_real_tests_are_red(tmp_path: Path, name: str) -> None:
    patch, changes, sort, faults = WEAKENED[name]
    copy = Copy(tmp_path, patch)
    for file, each in changes:
        copy.weaken(file, *each)
    rows = copy.prove({"in", sort})
    for variant, fault in faults.items():
        assert re.search(fault, rows[variant].verdict.fault), rows[variant].verdict
    if sort != "in":
        assert rows["all in"].verdict.fault == ""


def test_every_hunk_of_the_plan_has_its_variant_and_is_noticed(tmp_path: Path) -> None:
    rows = Copy(tmp_path, ALLOC).prove({"hunk"})
    assert list(rows) == ["routing[1]", "routing[2]", "routing[3]", "report[1]"]
    assert {name: row.verdict.fault for name, row in rows.items() if row.verdict.fault} == {}
