"""``graftwork rebase``: what applies stays, what drifted is merged three ways and cut anew, conflicts are marked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tiny import Done, Workshop
from toys import TOY_PATCH, TOY_SOURCE, Toy

from graftwork.catalog.patches import Anchor
from graftwork.patching.assess import Engine
from graftwork.patching.plan import plan
from graftwork.patching.states import State
from graftwork.trees.folder import FolderTree

FILE = "patches/toy/rows/patch.toml"
MOVED = TOY_SOURCE.replace("if self.is_small():", "if self.is_small() or padded is None:").replace(
    "is_small", "is_little"
)


def rebase(toy: Toy, source: str, *more: object) -> Done:
    toy.write("next/toy/__init__.py", "")
    toy.write("next/toy/pool.py", source)
    trees = ("--tree", toy.root / "next", "--from", "1.0", "--from-tree", toy.tree)
    return Workshop(toy.root, "rows", {}).run("rebase", "--to", "2.0", *trees, *more)


def state(toy: Toy, tree: str, version: str) -> tuple[State, str]:
    from packaging.version import Version

    planned = plan(FolderTree(toy.root / tree), [toy.catalog.patch("toy/rows")], Engine(Version(version), "cpu"))
    text = (planned.changes[0].new or b"").decode() if planned.changes else ""
    return planned.patches[0].state, text


def test_a_proposal_is_written_only_if_wanted_and_holds_on_both_releases(toy: Toy) -> None:
    before = (toy.root / FILE).read_text()
    shown = rebase(toy, MOVED)
    assert shown.code == 0 and "cut anew  rows" in shown.out, shown.out
    assert (toy.root / FILE).read_text() == before
    assert rebase(toy, MOVED, "--write").code == 0
    spec = toy.catalog.patch("toy/rows").spec
    assert [(edit.id, type(edit).__name__, edit.versions) for edit in spec.edit] == [
        ("rows", "Codemod", "<2.0"), ("rows", "Anchor", ">=2.0")
    ]  # fmt: skip
    old, new = state(toy, "tree", "1.0"), state(toy, "next", "2.0")
    assert old[0] is new[0] is State.PENDING
    assert "_toy_clip = count < rows\n\n        if self.is_little() or padded is None:" in new[1]
    assert "count = min(rows, padded)" in new[1]


def test_what_applies_stays_as_it_is(toy: Toy) -> None:
    before = (toy.root / FILE).read_text()
    done = rebase(toy, TOY_SOURCE + "\n\nMORE = 1\n", "--write")
    assert done.code == 0 and "applies as it is" in done.out
    assert (toy.root / FILE).read_text() == before


def test_only_the_version_is_in_the_way(toy: Toy) -> None:
    toy.patch("rows", TOY_PATCH.replace("[[edit]]", 'versions = "==1.0"\n\n[[edit]]', 1))
    assert rebase(toy, TOY_SOURCE, "--write").code == 0
    assert toy.catalog.patch("toy/rows").spec.versions == ">=1.0,<=2.0"
    assert state(toy, "next", "2.0")[0] is State.PENDING


def test_conflicts_are_marked_and_settled_in_a_folder(toy: Toy, tmp_path: Path) -> None:
    source = TOY_SOURCE.replace("count = rows\n", "count = self.counted(rows)\n")
    before, work = (toy.root / FILE).read_text(), tmp_path / "work"
    shown = rebase(toy, source, "--write")
    assert shown.code == 3 and not work.exists()
    assert re.search(r"toy/pool.py:\d+: <<<<<<< 1.0 with the patch", shown.out)
    assert re.search(r"toy/pool.py:\d+: \|\|\|\|\|\|\| 1.0", shown.out) and ">>>>>>> 2.0" in shown.out
    assert rebase(toy, source, "--write", "--work", work).code == 3
    merged = work / "toy/pool.py"
    assert b"<<<<<<< " in merged.read_bytes()
    left = rebase(toy, source, "--write", "--work", work)
    assert left.code == 2 and "conflict marks are left" in left.err
    settled = re.sub(
        r"<<<<<<<.*?>>>>>>> 2.0",
        "        count = min(self.counted(rows), padded)\n        _toy_clip = 1",
        merged.read_text(),
        flags=re.S,
    )
    merged.write_text(settled)
    assert (toy.root / FILE).read_text() == before
    done = rebase(toy, source, "--write", "--work", work)
    assert done.code == 0, done.err
    assert state(toy, "next", "2.0") == (State.PENDING, settled)
    assert state(toy, "tree", "1.0")[0] is State.PENDING


def test_a_marker_moves_with_its_function(toy: Toy) -> None:
    source = MOVED.replace("def take(", "def take_rows(")
    done = rebase(toy, source, "--write")
    assert done.code == 0, done.err
    spec = toy.catalog.patch("toy/rows").spec
    assert [(marker.function, marker.versions) for marker in spec.marker] == [
        ("Pool.take", "<2.0"), ("Pool.take_rows", ">=2.0")
    ]  # fmt: skip
    assert state(toy, "next", "2.0")[0] is State.PENDING


def test_a_file_that_is_gone_is_a_conflict_that_says_where_to_look(toy: Toy) -> None:
    toy.write("next/toy/__init__.py", "")
    toy.write("next/toy/pools/pool.py", TOY_SOURCE)
    trees = ("--tree", toy.root / "next", "--from", "1.0", "--from-tree", toy.tree)
    done = Workshop(toy.root, "rows", {}).run("rebase", "--to", "2.0", *trees)
    assert done.code == 3 and "toy/pool.py is not in 2.0; of that name: toy/pools/pool.py" in done.out


def test_needless_and_impossible(toy: Toy) -> None:
    fixed = TOY_PATCH + '\n[[obsolete_when]]\nfile = "toy/pool.py"\ndefines = "fixed"\nreason = "it is"\n'
    toy.patch("rows", fixed)
    assert rebase(toy, TOY_SOURCE + "\n\ndef fixed():\n    pass\n").code == 7
    toy.patch("rows", TOY_PATCH)
    toy.pool.write_text("nothing = 1\n")
    done = rebase(toy, MOVED)
    assert done.code == 3 and "does not apply to" in done.err


@pytest.mark.parametrize(
    ("old", "version", "new"),
    [
        ("", "2", ""),
        (">=1", "2", ">=1"),
        ("==1.0", "2", ">=1.0,<=2"),
        ("==1.0", "0.5", ">=0.5,<=1.0"),
        (">=1,<2", "2", ">=1,<=2"),
        (">=1,<2", "0.5", "<2,>=0.5"),
        (">=1,!=2", "2", ">=1"),
    ],
)
def test_versions_are_widened(old: str, version: str, new: str) -> None:
    from packaging.version import Version

    from graftwork.catalog.versions import matches, widened

    assert widened(old, Version(version)) == new and matches(new, Version(version))


def test_hunks_that_apply_stay_and_only_the_others_are_cut_anew(toy: Toy) -> None:
    tail = "        return kernel(count, padded, wide=True)\n"
    source = TOY_SOURCE.replace(tail, f"        if self.is_small():\n            padded = 1\n{tail}")  # ambiguous now
    done = rebase(toy, source, "--write")
    assert done.code == 0, done.out
    old, part, cut = toy.catalog.patch("toy/rows").spec.edit
    assert [(edit.id, edit.versions) for edit in (old, part)] == [("rows", "<2.0"), ("rows", ">=2.0")]
    assert part.hunk == old.hunk[:1] and isinstance(cut, Anchor)  # type: ignore[union-attr]
    assert cut.scope == "Pool.take" and "_toy_clip" in cut.hunk[0].replace and cut.versions == ">=2.0"
    assert state(toy, "next", "2.0")[0] is state(toy, "tree", "1.0")[0] is State.PENDING


def test_an_older_release_and_the_post_releases_of_it(toy: Toy) -> None:
    toy.write("next/toy/__init__.py", "")
    toy.write("next/toy/pool.py", MOVED)
    trees = ("--tree", toy.root / "next", "--from", "1.0.post1", "--from-tree", toy.tree)
    done = Workshop(toy.root, "rows", {}).run("rebase", "--to", "1.0", *trees, "--write")
    assert done.code == 0, done.err
    assert {edit.versions for edit in toy.catalog.patch("toy/rows").spec.edit} == {">=1.0.post0", "<=1.0"}
    assert state(toy, "next", "1.0")[0] is state(toy, "tree", "1.0.post1")[0] is State.PENDING
    assert state(toy, "tree", "1.1")[0] is State.PENDING
