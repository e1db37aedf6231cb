"""Marker candidates: only the changed text has them, compiled, with and without asserts and docstrings."""

from __future__ import annotations

import pytest
from toys import TOY_SOURCE

from graftwork.harness.suggest import candidates, chosen, with_marker
from graftwork.patching.check import has_marker
from graftwork.patching.markers import compiled

PATH = "toy/pool.py"


def found(old: str, new: str, source: str = TOY_SOURCE) -> list[tuple[str, str, str]]:
    assert source.count(old) == 1
    after = source.replace(old, new)
    markers = candidates(PATH, source, after)
    for marker in markers:
        where = (marker.function, marker.kind, marker.value)
        assert has_marker(compiled(after, PATH), *where) and not has_marker(compiled(source, PATH), *where)
    return [(marker.function, marker.kind, marker.value) for marker in markers]


def test_each_kind_is_found_where_it_is() -> None:
    changed = found("count = rows", "fewer = self.limit_of(rows, 'a whole string')\n        count = helper(fewer)")
    assert changed == [
        ("Pool.take", "local", "fewer"),
        ("Pool.take", "name", "helper"),
        ("Pool.take", "attribute", "limit_of"),
        ("Pool.take", "constant", "a whole string"),
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("count = rows", "count = rows + 1"),  # a number is no marker
        ("# how many rows", "# how many of them"),
        ('"""A pool."""', '"""A pool of rows."""'),  # -OO drops docstrings
        ("count = rows", "assert rows, 'rows are needed'\n        count = rows"),  # -O drops asserts
        ("count = rows", "count = kernel"),  # the module has that name already
        ("count = rows", "count = min(rows, padded)"),  # anybody may call a builtin
    ],
)
def test_what_does_not_survive_or_is_not_ours_is_none(old: str, new: str) -> None:
    assert found(old, new) == []


def test_one_candidate_for_each_function() -> None:
    new = TOY_SOURCE.replace("count = rows", "count = first = second = rows").replace(
        "return True", "third = 3\n        return 3"
    )
    best = chosen(candidates(PATH, TOY_SOURCE, new))
    assert [(marker.function, marker.value) for marker in best] == [("Pool.take", "first"), ("Pool.is_small", "third")]


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("return True", "return False", ("Pool.is_small", "local")),
        ("padded,\n            )", "padded + 1,\n            )", ("Pool.take", "local")),  # inside a statement
        ("LIMIT = 10", "LIMIT = 11", ("<module>", "name")),
        ("class Pool:", "class Pool(dict):", ("<module>", "name")),
        ("def kernel(count, padded, wide=False)", "def kernel(count, padded, wide=True)", ("<module>", "name")),
        ('"""A pool."""', '"""A small pool."""', ("<module>", "name")),
    ],
)
def test_a_marker_is_put_above_the_changed_statement(old: str, new: str, where: tuple[str, str]) -> None:
    after = TOY_SOURCE.replace(old, new)
    made = with_marker(PATH, TOY_SOURCE, after, "_graft_x")
    assert made is not None
    text, marker = made
    assert (marker.function, marker.kind) == where
    assert [line for line in text.split("\n") if "_graft_x" not in line] == after.split("\n")


def test_a_marker_never_goes_between_if_and_elif() -> None:
    old = "def f(x):\n    if x:\n        return 1\n    elif x > 2:\n        return 2\n"
    made = with_marker("toy/x.py", old, old.replace("x > 2", "x > 3"), "_graft_x")
    assert made and made[0].startswith("def f(x):\n    _graft_x = True\n    if x:")
