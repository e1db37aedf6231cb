"""Node patterns: what counts as alike, and that only what differs is replaced."""

from __future__ import annotations

import libcst as cst
import pytest

from graftwork.catalog.patches import Codemod, CodemodHunk
from graftwork.errors import TreeError
from graftwork.patching import codemod
from graftwork.patching.hunks import HunkState
from graftwork.patching.pattern import alike, pattern


def edit(*hunks: CodemodHunk, scope: str = "") -> Codemod:
    return Codemod(id="e", file="toy/x.py", scope=scope, hunk=list(hunks))


def states(change: Codemod, text: str) -> list[HunkState]:
    return [hunk.state for hunk in codemod.examine(change, text)]


@pytest.mark.parametrize(
    ("want", "have", "same"),
    [
        ("f(a, $x)", "f( a ,\n  b + 1 )", True),
        ("f(a, $x)", "f(a)", False),
        ("f(a, $x)", "f(a, key=b)", False),
        ("f($x, $x)", "f(a.b, a . b)", True),
        ("f($x, $x)", "f(a, b)", False),
        ("f(a, ...)", "f(a)", True),
        ("f(a, ...)", "f(a, b, c=1)", True),
        ("f(..., z)", "f(a, b, z)", True),
        ("f(..., z)", "f(z, a)", False),
        ("f('a')", 'f("a")', True),
        ("(a)", "a", True),
        ("a and b", "a and (b)", True),
        ("a and b", "a or b", False),
        ("x.is_aiter()", "self.y.is_aiter()", False),
        ("$b.is_aiter()", "self.y.is_aiter()", True),
        ("not $a", "not x", True),
        ("f(*$a)", "f(*b)", True),
        ("f(*$a)", "f(**b)", False),
        ("f(k=$a)", "f(k = 2)", True),
    ],
)
def test_expressions(want: str, have: str, same: bool) -> None:
    assert alike(pattern(want), cst.parse_expression(have), {}) is same


@pytest.mark.parametrize(
    ("want", "have", "same"),
    [
        ("if $a: ...", "if x:\n    y = 1\nelse:\n    z()\n", True),
        ("if $a: ...", "if x: pass\n", True),
        ("if a: return", "if a:\n    return\n", True),
        ("if a: return", "if a:\n    return 1\n", False),
        ("x = f(...)", "x  =  f(1, 2)\n", True),
        ("x = f(...)", "x: int = f()\n", False),
        ("for $i in $xs: ...", "for i in range(3):\n    pass\n", True),
        ("while True: ...", "while True:\n    pass\n", True),
    ],
)
def test_statements(want: str, have: str, same: bool) -> None:
    line = cst.parse_module(have).body[0]
    node = line.body[0] if isinstance(line, cst.SimpleStatementLine) else line
    assert alike(pattern(want), node, {}) is same


@pytest.mark.parametrize(
    ("text", "hunk", "result"),
    [
        ("y = f( a,b )  # keep\n", CodemodHunk(match="f(a, $x)", becomes="f(a[:n], $x)"), "y = f( a[:n],b )  # keep\n"),
        ("y = f(a, b)\n", CodemodHunk(match="f(a, $x)", becomes="f(a, $x, k=1)"), "y = f(a, b, k=1)\n"),
        ("y = f(a)\n", CodemodHunk(match="f(a)", becomes="f(a, k=1, j=2)"), "y = f(a, k=1, j=2)\n"),
        (
            "y = f(\n    a,\n    b,\n)\n",
            CodemodHunk(match="f(a, b)", becomes="f(a, b, k=1)"),
            "y = f(\n    a,\n    b,\n    k=1,\n)\n",
        ),
        (
            "if not x and y: # why\n    z()\n",
            CodemodHunk(match="if not x and $r: ...", becomes="if (not x or t) and $r: ..."),
            "if (not x or t) and y: # why\n    z()\n",
        ),
        ("x = g(1)\n", CodemodHunk(match="g($a)", becomes="h($a, $a)"), "x = h(1, 1)\n"),
        ("a = 1\n\nb = 2\n", CodemodHunk(match="b = 2", before="t = 0"), "a = 1\n\nt = 0\n\nb = 2\n"),
        (
            "a = 1\n# c\nb = 2\n",
            CodemodHunk(match="a = 1", after="# mine\nt = 0"),
            "a = 1\n# mine\nt = 0\n# c\nb = 2\n",
        ),
        ("def f():\n\tif x:\n\t\ty()\n", CodemodHunk(match="y()", becomes="z()"), "def f():\n\tif x:\n\t\tz()\n"),
        ("a = 1\r\nb = 2\r\n", CodemodHunk(match="b = 2", before="t = 0"), "a = 1\r\nt = 0\r\nb = 2\r\n"),
    ],
)
def test_apply_and_take_out_again(text: str, hunk: CodemodHunk, result: str) -> None:
    change = edit(hunk)
    assert states(change, text) == [HunkState.PENDING]
    assert codemod.forward(change, text) == result
    assert states(change, result) == [HunkState.DONE]
    assert codemod.backward(change, result) == text


def test_a_method_in_an_odd_place_keeps_everything_around_it() -> None:
    text = (
        "import os\n\f\nif os.name:\n  class A:\n\n    @property\n    def f(self):\n      'doc'\n"
        "      return g(1)  # end\n\n    def h(self): return g(1)\n# last line without newline"
    )
    change = edit(CodemodHunk(match="g($x)", becomes="g($x, 2)"), scope="A.f")
    assert states(change, text) == [HunkState.PENDING]
    result = codemod.forward(change, text)
    assert result == text.replace("g(1)  # end", "g(1, 2)  # end")
    assert codemod.backward(change, result) == text


def test_scopes_that_are_missing_or_twice() -> None:
    change = edit(CodemodHunk(match="g($x)", becomes="h($x)"), scope="A.take_rows")
    (missing,) = codemod.examine(
        change, "class A:\n    def take_row(self): g(1)\nclass B:\n    def take_rows(self): pass\n"
    )
    assert missing.state is HunkState.MISSING
    assert "B.take_rows" in missing.detail and "A.take_row" in missing.detail
    (twice,) = codemod.examine(change, "class A:\n    def take_rows(self): g(1)\n    def take_rows(self): g(1)\n")
    assert twice.state is HunkState.AMBIGUOUS and "line 2, 3" in twice.detail


def test_counts_before_it_changes() -> None:
    change = edit(CodemodHunk(match="g($x)", becomes="h($x)"), CodemodHunk(match="nothing()", absent=True))
    (twice, holds) = codemod.examine(change, "g(1)\ng(2)\n")
    assert (twice.state, holds.state) == (HunkState.AMBIGUOUS, HunkState.HOLDS)
    assert "line 1, 2" in twice.detail
    assert states(change, "g(1)\nh(2)\n") == [HunkState.BOTH, HunkState.HOLDS]
    assert states(change, "g(1)\nnothing()\n") == [HunkState.PENDING, HunkState.BLOCKED]
    (near, _) = codemod.examine(change, "a = 1\nk(1)\n")
    assert near.state is HunkState.MISSING and "toy/x.py:2: k(1)" in near.detail


def test_a_replacement_that_binds_to_its_neighbours_is_refused() -> None:
    change = edit(CodemodHunk(match="f($x)", becomes="$x + 1"))
    with pytest.raises(TreeError, match="changes the meaning"):
        codemod.forward(change, "y = 2 * f(x)\n")
    assert (
        codemod.forward(edit(CodemodHunk(match="f($x)", becomes="($x + 1)")), "y = 2 * f(x)\n") == "y = 2 * (x + 1)\n"
    )


def test_source_that_is_not_python() -> None:
    with pytest.raises(TreeError, match=r"toy/x\.py:2: not Python source"):
        codemod.examine(edit(CodemodHunk(match="f()", becomes="g()")), "a = 1\nb = = 2\n")
