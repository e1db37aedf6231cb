"""Codemods cut from a change: only where they make the very bytes of it, and lead back; anchors otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import TOY_SOURCE

from graftwork.catalog.patches import Anchor, Codemod
from graftwork.patching import edits as editing
from graftwork.patching.hunks import HunkState
from graftwork.patching.overlay import Overlay
from graftwork.upstream.cut_codemod import cut_best

PATH = "toy/pool.py"


class OneFile:
    """A tree of one file."""

    origin = "a test"

    def __init__(self, text: str) -> None:
        self.text = text

    def read(self, path: str) -> bytes:
        return self.text.encode()

    def exists(self, path: str) -> bool:
        return path == PATH

    def paths(self) -> list[str]:
        return [PATH]


def both_ways(edits: list[Anchor | Codemod], old: str, new: str) -> None:
    """The edits are pending in *old*, make *new* of it, are done there, and lead back."""
    over = Overlay(OneFile(old))  # type: ignore[arg-type]
    for edit in edits:
        assert {hunk.state for hunk in editing.examine(edit, Path(), over)} == {HunkState.PENDING}
        editing.forward(edit, Path(), over)
    assert over.text_of(PATH) == new
    for edit in reversed(edits):
        assert {hunk.state for hunk in editing.examine(edit, Path(), over)} == {HunkState.DONE}
        editing.backward(edit, Path(), over)
    assert over.text_of(PATH) == old


def cut(old: str, new: str, source: str = TOY_SOURCE) -> Anchor | Codemod:
    assert source.count(old) == 1
    after = source.replace(old, new)
    (edit,) = cut_best({PATH: (source, after)})
    both_ways([edit], source, after)
    return edit


COUNT, SMALL, TEST = "count = rows", "return True", "if self.is_small():"


@pytest.mark.parametrize(
    ("old", "new", "hunk"),
    [
        (COUNT, "count = min(rows, 1)", {"match": COUNT, "becomes": "count = min(rows, 1)"}),
        (SMALL, f"limit = 2\n        {SMALL}", {"match": SMALL, "before": "limit = 2\n"}),
        (COUNT, f"{COUNT}\n        # why\n        more = 1", {"match": COUNT, "after": "# why\nmore = 1\n"}),
        (TEST, "if not self.is_small():", {"match": f"{TEST} ...", "becomes": "if not self.is_small(): ..."}),
        ("LIMIT = 10", "LIMIT = 12", {"match": "LIMIT = 10", "becomes": "LIMIT = 12"}),
    ],
)
def test_whole_statements_become_node_patterns(old: str, new: str, hunk: dict[str, str]) -> None:
    edit = cut(old, new)
    assert isinstance(edit, Codemod)
    found = edit.hunk[0]
    assert {key: getattr(found, key) for key in hunk} == hunk and len(edit.hunk) == 1


def test_a_change_within_a_long_statement_takes_it_whole() -> None:
    edit = cut("                padded,\n            )", "                padded + 1,\n            )")
    assert isinstance(edit, Codemod) and edit.hunk[0].match.startswith("return kernel(\n")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# how many rows", "# the number of rows"),  # no pattern sees a comment
        ("        count = rows\n", ""),  # nothing is left to find
        ("        count = rows\n", "        first = rows\n        count = first\n"),  # one into two
    ],
)
def test_other_changes_stay_anchors(old: str, new: str) -> None:
    assert isinstance(cut(old, new), Anchor)


def test_a_file_that_is_not_python_has_anchors() -> None:
    (edit,) = cut_best({"toy/x.json": ('{"a": 1}\n', '{"a": 2}\n')})
    assert isinstance(edit, Anchor)


_LINES = st.sampled_from(
    [
        "        count = rows\n",
        "        count = 1\n",
        "        if rows:\n            count = 2\n",
        "        # c\n",
        "\n",
        "",
    ]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_LINES, min_size=1, max_size=5), st.lists(_LINES, min_size=1, max_size=5))
def test_any_change_of_statements_holds_both_ways(one: list[str], other: list[str]) -> None:
    old, new = (TOY_SOURCE.replace("        count = rows\n", "".join(lines)) for lines in (one, other))
    if old != new:
        both_ways(cut_best({PATH: (old, new)}), old, new)
