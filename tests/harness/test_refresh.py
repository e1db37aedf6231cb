"""``graftwork refresh``: smaller anchors for the same result, and a tree edited by hand as the new revision."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tiny import Done, Workshop
from toys import TOY_PATCH, TOY_SOURCE, Toy

from graftwork.catalog.catalog import Patch
from graftwork.catalog.patches import Codemod
from graftwork.harness.revision import next_revision
from graftwork.patching.assess import Engine, assess
from graftwork.patching.overlay import Overlay
from graftwork.patching.plan import plan
from graftwork.patching.states import State
from graftwork.trees.folder import FolderTree

FILE = "patches/toy/rows/patch.toml"
POOL = "toy/pool.py"
WIDE = """
[[edit]]
id = "wide"
kind = "anchor"
file = "toy/pool.py"

[[edit.hunk]]
why = "yes"
find = '''
    def is_small(self):
        return True


def kernel'''
replace = '''
    def is_small(self):
        return False


def kernel'''

[[marker]]
"""


def refresh(toy: Toy, *arguments: object) -> Done:
    given = ("--pristine", toy.tree, "--engine-version", "1.0", *arguments)
    return Workshop(toy.root, "rows", {}).run("refresh", *given)


@pytest.fixture
def patched(toy: Toy) -> Path:
    """A copy of the tree with the patch in it."""
    folder = toy.root / "edited"
    shutil.copytree(toy.tree, folder)
    for change in plan(FolderTree(toy.tree), toy.patches, toy.engine).changes:
        (folder / change.path).write_bytes(change.new or b"")
    return folder


def state(toy: Toy, folder: Path, patch: Patch | None = None) -> tuple[State, bool]:
    found = assess(patch or toy.catalog.patch("toy/rows"), Overlay(FolderTree(folder)), toy.engine)
    return found.state, found.upgradable


def pool(toy: Toy) -> str:
    """What planning the patch makes of the stock file."""
    (change,) = plan(FolderTree(toy.tree), toy.patches, toy.engine).changes
    return (change.new or b"").decode()


def test_an_anchor_becomes_small_and_scoped_and_makes_the_same(toy: Toy) -> None:
    toy.patch("rows", TOY_PATCH.replace("[[marker]]", WIDE.lstrip("\n"), 1))
    before, made = (toy.root / FILE).read_text(), pool(toy)
    shown = refresh(toy)
    assert shown.code == 0 and "kept      rows" in shown.out and '+scope = "Pool.is_small"' in shown.out, shown.err
    assert (toy.root / FILE).read_text() == before
    assert refresh(toy, "--write").code == 0
    spec = toy.catalog.patch("toy/rows").spec
    (hunk,) = spec.edit[1].hunk  # type: ignore[union-attr]
    assert (hunk.find, hunk.why) == ("        return True\n", "yes") and spec.revision == "R2"  # type: ignore[union-attr]
    assert pool(toy) == made
    assert "every anchor is as it should be" in refresh(toy, "--write").out


def test_a_tree_edited_by_hand_becomes_the_new_revision(toy: Toy, patched: Path) -> None:
    old = patched.joinpath(POOL).read_text()
    text = old.replace("return True", "enough = 1\n        return enough > 0")
    before = shutil.copytree(patched, toy.root / "before")
    (patched / POOL).write_text(text)
    (patched / "toy/pool.py.orig").write_text("left by an editor")
    (patched / "toy/fast.cpython-310.so").write_bytes(b"\x7fELF")
    files = sorted((toy.root / "patches").rglob("*"))
    shown = refresh(toy, "--tree", patched)
    assert shown.code == 0 and "toy/rows R2 -> R3" in shown.out and "kept      rows" in shown.out, shown.err
    assert sorted((toy.root / "patches").rglob("*")) == files
    assert refresh(toy, "--tree", patched, "--write").code == 0
    patch = toy.catalog.patch("toy/rows")
    assert (patch.spec.revision, [item.id for item in patch.earlier]) == ("R3", ["R2"])
    assert [marker.value for marker in patch.spec.marker] == ["_toy_clip", "enough"]
    assert pool(toy) == text
    assert state(toy, patched) == (State.APPLIED, False) and state(toy, before) == (State.OUTDATED, True)
    assert "nothing to take over" in refresh(toy, "--tree", patched).out


def test_a_change_within_an_edit_replaces_the_hunk_that_it_is_in(toy: Toy, patched: Path) -> None:
    toy_spec = toy.catalog.patch("toy/rows").spec
    text = patched.joinpath(POOL).read_text().replace("_toy_clip = count < rows", "_toy_clip = rows - count")
    (patched / POOL).write_text(text)
    done = refresh(toy, "--tree", patched, "--write", "--revision", "R9")
    assert done.code == 0 and "_graft_rows_r9 was added to toy/pool.py" in done.out, done.err
    patch = toy.catalog.patch("toy/rows")
    (edit,) = patch.spec.edit
    assert patch.spec.revision == "R9" and isinstance(edit, Codemod) and edit.hunk[0] == toy_spec.edit[0].hunk[0]
    lines = [line for line in pool(toy).split("\n") if "_graft_rows_r9" not in line]
    assert lines == text.split("\n")


def test_another_patch_in_the_tree_stays_its_own(toy: Toy, patched: Path) -> None:
    other = (
        TOY_PATCH.replace("toy/rows", "toy/more")
        .replace("_toy_clip = count < rows", "_more = 1")
        .replace("_toy_clip", "_more")
    )
    other = other.replace('match = "count = rows"\nbecomes = "count = min(rows, padded)"\n\n[[edit.hunk]]\n', "")
    toy.patch("more", other.replace("if self.is_small(): ...", "return True").replace("Pool.take", "Pool.is_small"))
    toy.target(lambda text: text.replace('["toy/rows"]', '["toy/rows", "toy/more"]'))
    text = patched.joinpath(POOL).read_text().replace("LIMIT = 10", "LIMIT = SPAN = 10")
    (patched / POOL).write_text(text.replace("return True", "_more = 1\n        return True"))
    done = refresh(toy, "--tree", patched, "--write")
    assert done.code == 0, done.err
    (change,) = plan(FolderTree(toy.tree), [toy.catalog.patch("toy/rows")], toy.engine).changes
    assert change.new == text.encode()


def test_new_files_come_along(toy: Toy, patched: Path) -> None:
    (patched / "toy/extra.py").write_text("def extra():\n    return 1\n")
    assert refresh(toy, "--tree", patched, "--write").code == 0
    changes = plan(FolderTree(toy.tree), toy.patches, toy.engine).changes
    assert {change.path: change.new for change in changes}["toy/extra.py"] == b"def extra():\n    return 1\n"
    (patched / "toy/extra.py").write_text("def extra():\n    more = 2\n    return more\n")
    assert refresh(toy, "--tree", patched, "--write").code == 0
    patch = toy.catalog.patch("toy/rows")
    assert [item.id for item in patch.earlier] == ["R2", "R3"] and patch.spec.revision == "R4"
    assert state(toy, patched) == (State.APPLIED, False)


def test_variants_of_other_releases_are_left_alone(toy: Toy, patched: Path) -> None:
    toy.patch("rows", TOY_PATCH.replace('scope = "Pool.take"', 'scope = "Pool.take"\nversions = "<2"', 1))
    (patched / POOL).write_text(patched.joinpath(POOL).read_text().replace("count < rows", "count < rows + 1"))
    assert refresh(toy, "--tree", patched, "--write").code == 0
    patch = toy.catalog.patch("toy/rows")
    assert {edit.versions for edit in patch.spec.edit} == {"<2"}
    assert assess(patch, Overlay(FolderTree(toy.tree)), Engine(toy.engine.version, "cpu")).state is State.PENDING


def test_a_marker_that_is_gone_stays_for_other_releases_only(toy: Toy, patched: Path) -> None:
    other = TOY_PATCH[TOY_PATCH.index("[[edit]]") : TOY_PATCH.index("[[marker]]")]
    second = other.replace('scope = "Pool.take"', 'scope = "Pool.take"\nversions = ">=2"', 1)
    first = TOY_PATCH.replace('scope = "Pool.take"', 'scope = "Pool.take"\nversions = "<2"', 1)
    toy.patch("rows", first.replace("[[marker]]", f"{second}[[marker]]", 1))
    (patched / POOL).write_text(patched.joinpath(POOL).read_text().replace("_toy_clip", "_toy_cut"))
    done = refresh(toy, "--tree", patched, "--write")
    assert done.code == 0 and "marker _toy_clip is not in toy/pool.py of 1.0 any more" in done.out, done.err
    marks = [(marker.value, marker.versions) for marker in toy.catalog.patch("toy/rows").spec.marker]
    assert marks == [("_toy_clip", "!=1.0"), ("_toy_cut", "<2")]
    assert state(toy, patched) == (State.APPLIED, False)


def test_what_cannot_be_taken_over(toy: Toy, patched: Path) -> None:
    (patched / POOL).write_text(TOY_SOURCE.replace("count = rows", "count = ("))
    assert (
        "does not compile" in refresh(toy, "--tree", patched).err or "not Python" in refresh(toy, "--tree", patched).err
    )
    toy.pool.write_text(TOY_SOURCE.replace("count = rows", "count = cows"))
    done = refresh(toy)
    assert done.code == 3 and "does not apply" in done.err and "graftwork rebase" in done.err


@pytest.mark.parametrize(("old", "new"), [("R1", "R2"), ("P1V3", "P1V4"), ("R9", "R10"), ("first", "first-2")])
def test_the_next_revision(old: str, new: str) -> None:
    assert next_revision(old) == new
