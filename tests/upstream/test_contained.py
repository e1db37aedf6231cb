"""Whether a text holds a change: every shape of a change, before, after, rewritten since, half there."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version
from toys import TOY_SOURCE

from graftwork.errors import TreeError
from graftwork.trees.folder import FolderTree
from graftwork.upstream.changes import Change, from_api, from_diff, package_path, parse
from graftwork.upstream.contained import decide, held

FIXED = TOY_SOURCE.replace("count = rows", "count = smaller_of(rows, padded)").replace(
    "LIMIT = 10\n", "LIMIT = 10\n\n\ndef smaller_of(one, other):\n    return min(one, other)\n"
)


def patch_text(old: str, new: str, lines: int = 3) -> str:
    """The ``patch`` of the API: hunks only."""
    rows = list(difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=lines))[2:]
    return "\n".join(rows)


def changes(old: str, new: str, path: str = "python/toy/pool.py") -> list[Change]:
    found, opaque = from_api([{"filename": path, "patch": patch_text(old, new)}], "toy")
    assert not opaque
    return found


def verdict(tmp_path: Path, rows: list[Change], text: str | None) -> str:
    (tmp_path / "toy").mkdir(exist_ok=True)
    (tmp_path / "toy/x.py").write_text("")
    if text is not None:
        (tmp_path / "toy/pool.py").write_text(text)
    return held(rows, FolderTree(tmp_path)).verdict


EDGES = {
    "replaced": ("a long first line\nb = 1\nlast line of it\n", "a long first line\nb = 2222\nlast line of it\n"),
    "inserted": ("first line here\nlast line here\n", "first line here\nin between, new\nlast line here\n"),
    "at the top": ("first line here\nlast line here\n", "new on the top of it all\nfirst line here\nlast line here\n"),
    "at the end": ("first line here\nlast line here\n", "first line here\nlast line here\nnew at the end of it all\n"),
    "removed": ("first line here\ngone, then\nlast line here\n", "first line here\nlast line here\n"),
    "removed at the end": (
        "first line here\nlast line here\ngone from here, then\n",
        "first line here\nlast line here\n",
    ),
    "short": ("    first of them\n    x\n    last of them\n", "    first of them\n    y\n    last of them\n"),
}


@pytest.mark.parametrize("name", EDGES)
def test_each_shape_is_told_before_and_after(tmp_path: Path, name: str) -> None:
    old, new = EDGES[name]
    around = "import os\n\nNAME = 'a module of its own'\n"
    for before, after in ((old, new), (around + old, around + new), (old + around, new + around)):
        rows = changes(before, after)
        assert verdict(tmp_path, rows, before) == "absent"
        assert verdict(tmp_path, rows, after) == "present"


def test_other_code_is_not_guessed_at(tmp_path: Path) -> None:
    assert verdict(tmp_path, changes(TOY_SOURCE, FIXED), "import os\n" * 40) == "unknown"
    assert verdict(tmp_path, changes(TOY_SOURCE, FIXED), None) == "unknown"


def test_half_a_change_is_partly_there(tmp_path: Path) -> None:
    half = TOY_SOURCE.replace("count = rows", "count = smaller_of(rows, padded)")
    assert verdict(tmp_path, changes(TOY_SOURCE, FIXED), half) == "partly"


def test_a_change_that_was_rewritten_since_still_counts(tmp_path: Path) -> None:
    later = FIXED.replace("return min(one, other)", "return one if one < other else other")
    assert verdict(tmp_path, changes(TOY_SOURCE, FIXED), later) == "present"


def test_code_around_it_may_move_on(tmp_path: Path) -> None:
    later = FIXED.replace('"""A pool."""', '"""A pool of rows."""').replace("        # how many rows\n", "")
    assert verdict(tmp_path, changes(TOY_SOURCE, FIXED), later) == "present"
    earlier = TOY_SOURCE.replace('"""A pool."""', '"""A pool of rows."""')
    assert verdict(tmp_path, changes(TOY_SOURCE, FIXED), earlier) == "absent"


def test_a_file_that_the_change_adds(tmp_path: Path) -> None:
    rows, _ = from_api([{"filename": "toy/new.py", "status": "added", "patch": "@@ -0,0 +1,2 @@\n+one\n+two"}], "toy")
    tree = FolderTree(tmp_path)
    assert held(rows, tree).verdict == "absent"
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy/new.py").write_text("one\ntwo\nthree\n")
    assert held(rows, tree).verdict == "present"


def test_what_is_not_in_the_package_does_not_count() -> None:
    listed = [{"filename": "test/pool.py", "patch": "@@ -1 +1 @@\n-a\n+b"}, {"filename": "toy/big.bin"}, {}]
    listed += [{"filename": "toy/cut.py", "patch": "@@ -1,9 +1,9 @@\n-a\n+b"}, {"filename": "toy/no.py", "patch": None}]
    assert from_api(listed, "toy") == ([], ["toy/big.bin", "toy/cut.py", "toy/no.py"])


@pytest.mark.parametrize(
    ("path", "want"),
    [
        ("python/toy/a.py", "toy/a.py"),
        ("toy/a.py", "toy/a.py"),
        ("toyother/a.py", None),
        ("python/toy/../../etc/passwd", None),
        ("docs/toy/a.py", None),
    ],
)
def test_paths_of_the_repository_and_of_the_package(path: str, want: str | None) -> None:
    assert package_path(path, "toy") == want


def test_a_diff_that_is_none_is_an_error() -> None:
    with pytest.raises(TreeError, match="upstream's diff cannot be read"):
        parse("--- a/x\n+++ b/x\n@@ -1,5 +1 @@\n-a\n", "x")


def test_a_whole_diff_and_the_listing_say_the_same() -> None:
    hunks = patch_text(TOY_SOURCE, FIXED)
    path = "python/toy/pool.py"
    other = "diff --git a/README b/README\n--- a/README\n+++ b/README\n@@ -1 +1 @@\n-a\n+b\n"
    whole = f"{other}diff --git a/{path} b/{path}\nindex 1..2 100644\n--- a/{path}\n+++ b/{path}\n{hunks}\n{other}"
    assert from_diff(whole, "toy") == changes(TOY_SOURCE, FIXED)


def test_releases_are_summed_up_by_version(tmp_path: Path) -> None:
    texts = {"1.10": FIXED, "1.9": TOY_SOURCE, "1.9.1": FIXED, "1.2": "x = 1\n", "1.11": TOY_SOURCE}
    texts["1.12"] = TOY_SOURCE.replace("count = rows", "count = smaller_of(rows, padded)")
    trees = []
    for version, text in texts.items():
        (tmp_path / version / "toy").mkdir(parents=True)
        (tmp_path / version / "toy/pool.py").write_text(text)
        trees.append((Version(version), FolderTree(tmp_path / version)))
    found = decide("o/r#1", changes(TOY_SOURCE, FIXED), ["toy/c.so"], trees, "2026-10-01")
    assert (found.first, found.present, found.absent) == ("1.9.1", ["1.9.1", "1.10"], ["1.9", "1.11"])
    assert (found.partly, found.unknown) == (["1.12"], ["1.2"])
    assert found.note == "1.12: 1 of 2 places" and "no text for toy/c.so" in found.method


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12, unique=True), st.integers(0, 2**30))
def test_any_edit_of_distinct_lines_is_told_apart(where: list[int], seed: int) -> None:
    """Text with telling lines, any set of them replaced, removed or preceded by a new one."""
    old = [f"the line number {n} of text {seed}" for n in range(31)]
    new: list[str] = []
    for n, line in enumerate(old):
        kind = (seed >> n) % 3 if n in where else 3
        new += {0: [f"another line {n} of {seed}"], 1: [], 2: [f"a new line {n} of {seed}", line], 3: [line]}[kind]
    rows = changes("\n".join(old) + "\n", "\n".join(new) + "\n")
    for text, want in ((old, "absent"), (new, "present")):
        assert held(rows, _Text("\n".join(text) + "\n")).verdict == want


class _Text:
    """A tree with one file."""

    origin = "text"

    def __init__(self, text: str) -> None:
        self.text = text

    def read(self, path: str) -> bytes:
        return self.text.encode()

    def exists(self, path: str) -> bool:
        return True

    def paths(self) -> list[str]:
        return ["toy/pool.py"]
