"""A toy engine whose kernel dies of a defect, a patch that mends it, and good tests for that patch."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from toys import TAKE, Toy, codemod, earlier, head, local

from graftwork.harness.prove import Row, prove
from graftwork.harness.variants import Sort, Stage, Variant
from graftwork.patching.plan import plan
from graftwork.trees.folder import FolderTree

SOURCE = '''\
"""A pool."""

import logging

logger = logging.getLogger(__name__)


class Pool:
    def take(self, rows, padded):
        count = rows
        if padded > 100:
            padded = 100
        return kernel(count, padded)


def kernel(count, padded):
    if count > padded:
        raise ValueError("Expected count <= padded to be true, but got false")
    return [count] * padded
'''

PATCH = head(
    "toy/rows",
    "R2",
    title="Use the smaller count",
    symptom="Expected count <= padded",
    why="rows and padded differ",
    drop_when="upstream takes the smaller one",
)
PATCH += codemod(
    "rows",
    TAKE,
    {"why": "the smaller of both", "match": "count = rows", "becomes": "count = min(rows, padded)"},
    {"match": "return kernel(count, padded)", "before": "_toy_clip = count < rows"},
    {"why": "the limit came too early", "match": "if padded > 100: ...", "becomes": "if padded > 200: ..."},
)
PATCH += local(TAKE, "_toy_clip") + earlier("one row at most")
EARLIER = codemod("rows", TAKE, {"match": "count = rows", "becomes": "count = _toy_old = min(rows, 1)"})
EARLIER += local(TAKE, "_toy_old")

MUTANTS = """\
[[mutant]]
id = "always-padded"
why = "the padded count instead of the smaller one"
[[mutant.edit]]
id = "rows"
kind = "codemod"
file = "toy/pool.py"
scope = "Pool.take"
[[mutant.edit.hunk]]
match = "min(rows, padded)"
becomes = "padded"

[[mutant]]
id = "one-less"
why = "off by one"
[[mutant.edit]]
id = "rows"
kind = "anchor"
file = "toy/pool.py"
[[mutant.edit.hunk]]
find = "min(rows, padded)"
replace = "min(rows, padded) - 1"
"""

GOOD = """\
import pytest

from graftwork.harness.defect import defect
from graftwork.harness.isolate import load_module

CASES = [(5, 8, 5), (8, 5, 5), (4, 4, 4), (7, 150, 7)]


@pytest.mark.parametrize(("rows", "padded", "count"), CASES)
def test_smaller_count(engine_tree, rows, padded, count):
    pool = load_module(engine_tree / "toy/pool.py", "toy.pool").Pool()
    with defect(ValueError, match="Expected count <= padded"):
        out = pool.take(rows, padded)
    assert out == [count] * padded
"""


class Proving(Toy):
    """The toy catalog with the patch ``toy/rows`` and its tests; ``write`` and ``patch`` change any of it."""

    def __init__(self, root: Path, tests: str = GOOD) -> None:
        super().__init__(root)
        self.patch("rows", PATCH)
        self.write("patches/toy/rows/old.toml", EARLIER)
        self.write("patches/toy/rows/mutants.toml", MUTANTS)
        self.tests(tests)
        self.write("tree/toy/pool.py", SOURCE)
        self.write("tree/toy/_version.py", '__version__ = "1.0"\n')

    def tests(self, text: str) -> None:
        self.write("patches/toy/rows/tests/test_rows.py", text)

    def change(self, path: str, old: str, new: str) -> None:
        """Replace text that occurs once in a file of the catalog or the tree."""
        text = (self.root / path).read_text("utf-8")
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {path}"
        self.write(path, text.replace(old, new))

    def stages(self, sorts: Collection[Sort] = ()) -> list[tuple[str, Stage]]:
        """The stages of target ``t``; with *sorts*, of those variants only."""
        tree = FolderTree(self.tree)
        planned = plan(tree, self.patches, self.engine)
        assert planned.refusal() is None
        return [
            ("t", Some(planned, tree, item.patch, self.catalog.mutants(item.patch), sorts=sorts))
            for item in planned.pending
        ]

    def prove(self, sorts: Collection[Sort] = (), *, limit: float = 300.0) -> dict[str, Row]:
        """Run the harness; rows by the variant's name."""
        rows = prove(self.stages(sorts), at_once=2, limit=limit)
        return {row.variant.name: row for row in rows}


@dataclass(frozen=True)
class Some(Stage):
    """A stage of which only some sorts of variants are wanted: each costs a process."""

    sorts: Collection[Sort] = ()

    def variants(self) -> Iterator[Variant]:
        return (variant for variant in super().variants() if not self.sorts or variant.sort in self.sorts)
