"""Anchors and diffs: exact text, once, at fuzz 0; and new files."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toys import Toy

from graftwork.catalog.patches import Anchor, AnchorHunk, Diff, NewFile
from graftwork.errors import CatalogError, GraftworkError
from graftwork.patching import anchors, diffs, edits
from graftwork.patching.hunks import HunkState
from graftwork.patching.overlay import Overlay
from graftwork.trees.folder import open_folder

TEXT = "".join(f"line {n}\n" for n in range(1, 41))
DIFF = """\
--- a/toy/x.txt
+++ b/toy/x.txt
@@ -5,3 +5,4 @@ somewhere
 line 5
-line 6
+line six
+line six and a half
 line 7
@@ -20,3 +21,2 @@
 line 20
-line 21
 line 22
"""


def anchor(find: str, replace: str, scope: str = "") -> Anchor:
    return Anchor(id="a", file="toy/x.txt", scope=scope, hunk=[AnchorHunk(find=find, replace=replace)])


@pytest.mark.parametrize(
    ("find", "replace", "text", "state"),
    [
        ("line 6\n", "line six\n", TEXT, HunkState.PENDING),
        ("line 6\n", "line 6\nmore\n", TEXT, HunkState.PENDING),
        ("line 6\n", "line 6\nmore\n", TEXT.replace("line 6\n", "line 6\nmore\n"), HunkState.DONE),
        ("line 6\nline 7\n", "line 7\n", TEXT, HunkState.PENDING),
        ("line 6\nline 7\n", "line 7\n", TEXT.replace("line 6\n", ""), HunkState.DONE),
        ("line 1", "row 1", TEXT, HunkState.AMBIGUOUS),
        ("line 6\n", "line six\n", TEXT + "line six\n", HunkState.BOTH),
        ("aa", "b", "aaa", HunkState.AMBIGUOUS),
        ("none\n", "some\n", TEXT, HunkState.MISSING),
    ],
)
def test_anchor_states(find: str, replace: str, text: str, state: HunkState) -> None:
    (hunk,) = anchors.examine(anchor(find, replace), text)
    assert hunk.state is state


def test_an_anchor_is_looked_for_in_its_scope_only() -> None:
    text = "def f():\n    return 1\n\ndef g():\n    return 1\n"
    change = anchor("return 1", "return 2", scope="g")
    (hunk,) = anchors.examine(change, text)
    assert hunk.state is HunkState.PENDING
    result = anchors.forward(change, text)
    assert result == "def f():\n    return 1\n\ndef g():\n    return 2\n"
    assert anchors.backward(change, result) == text


def test_a_missing_anchor_shows_the_nearest_lines() -> None:
    (hunk,) = anchors.examine(
        anchor("line 6\nline 7 is long\nline 8\n", "x\n"), TEXT.replace("line 7", "line 7 is longer")
    )
    assert hunk.state is HunkState.MISSING
    assert "toy/x.txt:6" in hunk.detail
    assert "- line 7 is long |" in hunk.detail and "+ line 7 is longer" in hunk.detail


def load(tmp_path: Path, text: str) -> tuple[Diff, Path]:
    diffs.load.cache_clear()
    (tmp_path / "x.diff").write_text(text, "utf-8")
    return Diff(id="d", source="x.diff"), tmp_path


def test_a_diff_applies_at_an_offset_and_comes_out_again(tmp_path: Path) -> None:
    edit, folder = load(tmp_path, DIFF)
    moved = "new first line\n" + TEXT
    assert [h.state for h in diffs.examine(edit, folder, lambda _: moved)] == [HunkState.PENDING] * 2
    result = diffs.forward(edit, folder, lambda _: moved)["toy/x.txt"]
    assert "line six and a half\nline 7\n" in result and "line 21" not in result
    assert [h.state for h in diffs.examine(edit, folder, lambda _: result)] == [HunkState.DONE] * 2
    assert diffs.backward(edit, folder, lambda _: result)["toy/x.txt"] == moved


def test_no_fuzz_and_no_choice_between_two_places(tmp_path: Path) -> None:
    edit, folder = load(tmp_path, DIFF)
    drifted = TEXT.replace("line 7\n", "line 7 moved\n")
    assert [h.state for h in diffs.examine(edit, folder, lambda _: drifted)] == [HunkState.MISSING, HunkState.PENDING]
    double = TEXT + TEXT
    assert [h.state for h in diffs.examine(edit, folder, lambda _: double)] == [HunkState.AMBIGUOUS] * 2
    # The old lines must be whole lines: a longer line that ends alike is not a match.
    suffix = TEXT.replace("line 5\n", "xline 5\n")
    assert diffs.examine(edit, folder, lambda _: suffix)[0].state is HunkState.MISSING


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it has no hunk"),
        ("no diff at all\n", "it has no hunk"),
        (DIFF.replace("@@ -5,3 +5,4 @@", "@@ -5,9 +5,4 @@"), "not a unified diff"),
        (DIFF.replace("--- a/toy/x.txt", "--- /dev/null"), "use"),
        (DIFF.replace("a/toy", "a/../toy").replace("b/toy", "b/../toy"), "not a path inside the tree"),
        ("--- a/toy/x.txt\n+++ b/toy/x.txt\n@@ -0,0 +1,1 @@\n+x\n", "adds, removes or renames"),
        ("--- a/toy/x.txt\n+++ b/toy/x.txt\n@@ -3,0 +4,1 @@\n+x\n", "without context"),
    ],
)
def test_broken_diffs(tmp_path: Path, text: str, says: str) -> None:
    edit, folder = load(tmp_path, text)
    with pytest.raises(CatalogError) as caught:
        diffs.examine(edit, folder, lambda _: TEXT)
    assert says in f"{caught.value.message} {caught.value.hint}"


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(DIFF)), st.integers(0, 60), st.text(max_size=10))
def test_a_damaged_diff_never_ends_in_a_traceback(tmp_path: Path, start: int, length: int, middle: str) -> None:
    edit, folder = load(tmp_path, "x")
    (folder / "x.diff").write_bytes((DIFF[:start] + middle + DIFF[start + length :]).encode("utf-8", "surrogatepass"))
    diffs.load.cache_clear()
    with contextlib.suppress(GraftworkError):
        hunks = diffs.examine(edit, folder, lambda _: TEXT)
        if all(hunk.state is HunkState.PENDING for hunk in hunks):
            diffs.forward(edit, folder, lambda _: TEXT)


def test_new_files_and_folders(toy: Toy) -> None:
    toy.write("patches/toy/rows/files/pkg/__init__.py", "A = 1\n")
    toy.write("patches/toy/rows/files/pkg/deep/b.py", "B = 1\n")
    edit, folder = NewFile(id="n", path="toy/pkg", source="files/pkg"), toy.root / "patches/toy/rows"
    over = Overlay(open_folder(toy.tree, "toy"))
    assert [(h.file, h.state) for h in edits.examine(edit, folder, over)] == [
        ("toy/pkg/__init__.py", HunkState.PENDING),
        ("toy/pkg/deep/b.py", HunkState.PENDING),
    ]
    edits.forward(edit, folder, over)
    assert {h.state for h in edits.examine(edit, folder, over)} == {HunkState.DONE}
    over.put("toy/pkg/deep/b.py", b"other\n")
    assert edits.examine(edit, folder, over)[1].state is HunkState.MISSING
    edits.backward(edit, folder, over)
    assert over.differing() == {}
