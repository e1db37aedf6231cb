"""Edits cut from a file before and after a change: they hold both ways, are unique, and stand in their function."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import TOY_SOURCE

from graftwork.errors import UsageError
from graftwork.upstream.recut import cut, cut_all, holds

_LINES = st.lists(
    st.sampled_from(["a = 1\n", "b = 2\n", "\n", "if a:\n    b = a\n", "def f():\n    return a\n"]), max_size=9
)


@settings(max_examples=300, deadline=None)
@given(_LINES, st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), _LINES), max_size=3), st.booleans())
def test_any_change_of_text_is_cut_or_refused(
    lines: list[str], changes: list[tuple[int, int, list[str]]], closed: bool
) -> None:
    after = list(lines)
    for at, count, put in changes:
        after[at : at + count] = put
    old, new = "".join(lines), "".join(after)
    if not closed:
        old, new = old.removesuffix("\n"), new.removesuffix("\n")
    if not old or not new:
        with pytest.raises(UsageError, match="no text to anchor at"):
            cut("toy/x.py", old, new)
    elif old != new:
        assert holds(cut("toy/x.py", old, new), old, new)


def test_a_change_is_scoped_to_its_function() -> None:
    new = TOY_SOURCE.replace("count = rows\n", "count = min(rows, padded)\n").replace("return True", "return False")
    one, other = cut("toy/pool.py", TOY_SOURCE, new)
    assert (one.scope, one.id, one.hunk[0].find) == ("Pool.take", "take", "        count = rows\n")
    assert (other.scope, other.hunk[0].replace) == ("Pool.is_small", "        return False\n")


def test_context_is_added_until_the_anchor_is_unique_in_its_scope() -> None:
    old = "def f(x):\n    if x:\n        x = 1\n        return x\n    x = 2\n    return x\n"
    new = old.removesuffix("return x\n") + "return -x\n"
    (edit,) = cut("toy/x.py", old, new)
    assert edit.scope == "f" and edit.hunk[0].find == "    x = 2\n    return x\n"


@pytest.mark.parametrize("end", ["\n", ""])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("first\nlast", "FIRST\nlast"),
        ("first\nlast", "first\nLAST"),
        ("first\nlast", "new\nfirst\nlast"),
        ("first\nlast", "first\nlast\nnew"),
        ("first\nlast", "first"),
        ("first\nlast", "last"),
        ("only", "other"),
    ],
)
def test_first_and_last_lines(old: str, new: str, end: str) -> None:
    edits = cut("toy/data.json", old + end, new + end)
    assert holds(edits, old + end, new + end)


def test_a_last_line_that_gets_or_loses_its_end() -> None:
    assert holds(cut("toy/x.txt", "a\nb", "a\nb\n"), "a\nb", "a\nb\n")
    assert holds(cut("toy/x.txt", "a\nb\n", "a\nb"), "a\nb\n", "a\nb")


def test_line_ends_are_kept_as_they_are() -> None:
    old = TOY_SOURCE.replace("\n", "\r\n")
    new = old.replace("LIMIT = 10", "LIMIT = 12")
    (edit,) = cut("toy/pool.py", old, new)
    assert edit.hunk[0].find == "LIMIT = 10\r\n" and holds([edit], old, new)


def test_names_that_are_defined_twice_are_no_scope() -> None:
    old = "if A:\n    def f():\n        return 1\nelse:\n    def f():\n        return 2\n"
    (edit,) = cut("toy/x.py", old, old.replace("return 2", "return 3"))
    assert edit.scope == ""


def test_edits_of_several_files_have_ids_of_their_own() -> None:
    old, new = "def f():\n    return 1\n", "def f():\n    return 2\n"
    edits = cut_all({f"toy/{name}.py": (old, new) for name in ("a", "b", "b/a")})
    assert len({edit.id for edit in edits}) == 3


def test_whole_functions_that_come_and_go(tmp_path: Path) -> None:
    new = TOY_SOURCE.replace(
        "    def is_small(self):\n        return True\n", "    def is_big(self):\n        return 1\n"
    )
    assert holds(cut("toy/pool.py", TOY_SOURCE, new), TOY_SOURCE, new)
    assert holds(cut("toy/pool.py", new, TOY_SOURCE), new, TOY_SOURCE)


def test_half_of_an_edit_need_not_be_python() -> None:
    old = "def f(x):\n    a = g(\n        x,\n    )\n    b = 1\n    return a, b\n"
    new = "def f(x):\n    a = {\n        x,\n    }\n    b = 1\n    return a, b\n"
    (edit,) = cut("toy/x.py", old, new)
    assert edit.scope == "f" and len(edit.hunk) == 2 and holds([edit], old, new)
