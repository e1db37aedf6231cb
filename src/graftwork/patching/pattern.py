"""Python snippets as node patterns: ``$x`` binds any expression, ``...`` any arguments or body.

Two nodes are alike when their syntax is; white space, comments, quotes and parentheses do not count.
Positions of a match are tree paths, so that one pass over the tree can change all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

import libcst as cst

Binds = dict[str, cst.CSTNode]
Change = Callable[[Any], Any]
Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement

_META = "__meta_"
_LAYOUT = re.compile(
    r"whitespace.*|leading_lines|lines_after_decorators|header|footer|lpar|rpar|[lr]bracket|[lr]brace|comma|semicolon"
    r"|equal|colon|first_line|last_line|trailing_whitespace|indent|newline|encoding|default_.*|has_trailing_newline"
)


_FIELDS: dict[type[Any], tuple[str, ...]] = {}


def syntax_fields(kind: type[Any]) -> tuple[str, ...]:
    """The fields of a libcst node that are syntax, not layout."""
    if kind not in _FIELDS:
        _FIELDS[kind] = tuple(field.name for field in fields(kind) if not _LAYOUT.fullmatch(field.name))
    return _FIELDS[kind]


_NODES: dict[type[Any], bool] = {}


def _is_node(kind: type[Any]) -> bool:
    """Whether *kind* is a type of node; asking an abstract class each time is slow."""
    if kind not in _NODES:
        _NODES[kind] = issubclass(kind, cst.CSTNode)
    return _NODES[kind]


def metavariables(text: str) -> str:
    """*text* with ``$x`` spelt as a Python name."""
    return re.sub(r"\$([A-Za-z_]\w*)", rf"{_META}\1", text)


@cache
def statements(text: str) -> tuple[Statement, ...]:
    """The statements of a snippet; comments and blank lines above the first one go with it."""
    module = cst.parse_module(metavariables(text).strip("\n") + "\n")
    first = module.body[0].with_changes(leading_lines=[*module.header, *module.body[0].leading_lines])
    return (first, *module.body[1:])


@cache
def pattern(text: str) -> cst.CSTNode:
    """A snippet as a pattern: an expression, a small statement or a compound statement."""
    body = statements(text)
    only = body[0]
    if len(body) != 1:
        raise ValueError(f"a pattern is one statement or expression: {text!r}")
    if not isinstance(only, cst.SimpleStatementLine):
        return only
    small = only.body[0]
    return small.value if isinstance(small, cst.Expr) else small


def alike(want: Any, have: Any, binds: Binds) -> bool:
    """Whether node *have* matches pattern *want*; fills *binds* with what each ``$x`` stands for."""
    if isinstance(want, cst.Name) and want.value.startswith(_META):
        if not isinstance(have, cst.BaseExpression):
            return False
        known = binds.setdefault(want.value, have)
        return known is have or alike(known, have, {})
    if isinstance(want, (cst.BaseSuite)):
        return isinstance(have, cst.BaseSuite) and (_is_any_body(want) or _alike_all(_lines(want), _lines(have), binds))
    if isinstance(want, (list, tuple)):
        return isinstance(have, (list, tuple)) and _alike_all(want, have, binds)
    if not isinstance(want, cst.CSTNode):
        return bool(want == have)
    if type(want) is not type(have):
        return False
    if isinstance(want, cst.SimpleString) and isinstance(have, cst.SimpleString):
        return bool(want.evaluated_value == have.evaluated_value)
    skip = ("orelse", "finalbody", "handlers") if _is_any_body(getattr(want, "body", None)) else ()
    return all(
        alike(getattr(want, name), getattr(have, name), binds)
        for name in syntax_fields(type(want))
        if name not in skip or getattr(want, name)
    )


def _alike_all(want: Sequence[Any], have: Sequence[Any], binds: Binds) -> bool:
    pairs = aligned(want, have)
    return pairs is not None and all(alike(w, h, binds) for w, h in pairs)


def aligned(want: Sequence[Any], have: Sequence[Any]) -> list[tuple[Any, Any]] | None:
    """Pairs of pattern item and item, with one ``...`` in *want* standing for any run; None if lengths differ."""
    gaps = [i for i, item in enumerate(want) if _is_any_run(item)]
    if not gaps:
        return list(zip(want, have, strict=True)) if len(want) == len(have) else None
    head, tail = gaps[0], len(want) - gaps[0] - 1
    if len(have) < head + tail:
        return None
    ends = list(zip(want[head + 1 :], have[len(have) - tail :], strict=True)) if tail else []
    return [*zip(want[:head], have[:head], strict=True), *ends]


def _is_any_run(item: Any) -> bool:
    return isinstance(item, cst.Arg) and item.keyword is None and isinstance(item.value, cst.Ellipsis)


def _is_any_body(suite: Any) -> bool:
    if not isinstance(suite, cst.BaseSuite) or len(suite.body) != 1:
        return False
    line = suite.body[0]
    small = line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else line
    return isinstance(small, cst.Expr) and isinstance(small.value, cst.Ellipsis)


def _lines(suite: cst.BaseSuite) -> list[Any]:
    """A suite's statements, whether it stands on the header's line or is indented."""
    if isinstance(suite, cst.SimpleStatementSuite):
        return [cst.SimpleStatementLine([small]) for small in suite.body]
    return list(suite.body)


def children(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The syntax nodes right below *node*, in source order."""
    for name in syntax_fields(type(node)):
        value = getattr(node, name)
        for child in value if type(value) in (list, tuple) else (value,):
            if _is_node(type(child)):
                yield child


def reads_back(written: Any, parsed: Any, kept: Container[int]) -> bool:
    """Whether a changed tree and its text parsed again are the same syntax.

    Nodes whose identity is in *kept* were not changed: where both trees have one, their text is the same.
    """
    if not isinstance(written, cst.CSTNode):
        return bool(written == parsed)
    if type(written) is not type(parsed):
        return False
    if id(written) in kept:
        return True
    for name in syntax_fields(type(written)):
        one, other = getattr(written, name), getattr(parsed, name)
        if isinstance(one, (list, tuple)):
            same = len(one) == len(other) and all(reads_back(o, p, kept) for o, p in zip(one, other, strict=True))
        else:
            same = reads_back(one, other, kept)
        if not same:
            return False
    return True


def filled(node: cst.CSTNode, binds: Mapping[str, cst.CSTNode]) -> cst.CSTNode:
    """A copy of the pattern *node* with each ``$x`` replaced by what it stands for."""

    class Fill(cst.CSTTransformer):
        def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
            bound = binds.get(original_node.value)
            return bound.deep_clone() if isinstance(bound, cst.BaseExpression) else updated_node

    copy = node.deep_clone().visit(Fill())
    assert isinstance(copy, cst.CSTNode)  # Fill removes nothing
    return copy


def differences(want: Any, becomes: Any, have: Any, binds: Binds) -> list[tuple[cst.CSTNode, Change]]:
    """The smallest changes that make node *have*, matched by *want*, into *becomes*.

    Only sub-nodes in which the two patterns differ are replaced, so the layout of all others stays.
    Returns (node of the tree, change to apply to that node).
    """
    found = _inner(want, becomes, have, binds)
    return [(have, lambda _: filled(becomes, binds))] if found is None else found


def _inner(want: Any, becomes: Any, have: Any, binds: Binds) -> list[tuple[cst.CSTNode, Change]] | None:
    """Like ``differences``, or None when *have* has to be replaced as a whole."""
    if type(want) is not type(becomes) or type(want) is not type(have):
        return [] if _same(want, becomes) else None
    if isinstance(want, cst.Name) or _same(want, becomes):
        return [] if _same(want, becomes) else None
    changes: list[tuple[cst.CSTNode, Change]] = []
    for name in syntax_fields(type(want)):
        before, after, now = getattr(want, name), getattr(becomes, name), getattr(have, name)
        if _same(before, after):
            continue
        if isinstance(before, cst.CSTNode) and isinstance(after, cst.CSTNode) and isinstance(now, cst.CSTNode):
            changes += differences(before, after, now, binds)
            continue
        if not isinstance(before, (list, tuple)) or not isinstance(after, (list, tuple)):
            return None
        inner = _in_sequence(have, name, (before, after, now), binds)
        if inner is None:
            return None
        changes += inner
    return changes


def _in_sequence(
    have: cst.CSTNode, name: str, items: tuple[Sequence[Any], Sequence[Any], Sequence[Any]], binds: Binds
) -> list[tuple[cst.CSTNode, Change]] | None:
    before, after, now = items
    if len(before) == len(after):
        triples = [(w, h) for w, h in aligned(before, now) or []]
        by_want = {id(w): b for w, b in zip(before, after, strict=True)}
        changes: list[tuple[cst.CSTNode, Change]] = []
        for w, h in triples:
            changes += differences(w, by_want[id(w)], h, binds)
        return changes
    if name != "args" or any(_is_any_run(item) for item in [*before, *after]):
        return None
    short, long = sorted((before, after), key=len)
    if not all(_same(s, item) for s, item in zip(short, long, strict=False)):
        return None
    extra = [filled(item, binds) for item in long[len(short) :]]
    if len(after) > len(before):
        return [(have, lambda node: node.with_changes(args=_appended(list(node.args), extra)))]
    return [(have, lambda node: node.with_changes(args=_dropped(list(node.args), len(extra))))]


def _appended(args: list[Any], extra: list[Any]) -> list[Any]:
    """Arguments with *extra* behind them, in the layout of the call; undone exactly by ``_dropped``."""
    if not args:
        return extra
    last = args[-1].comma
    between = args[-2].comma if len(args) > 1 else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    joined = [*args[:-1], args[-1].with_changes(comma=between)]
    joined += [item.with_changes(comma=between) for item in extra[:-1]]
    return [*joined, extra[-1].with_changes(comma=last)]


def _dropped(args: list[Any], count: int) -> list[Any]:
    kept = args[:-count]
    return [*kept[:-1], kept[-1].with_changes(comma=args[-1].comma)] if kept else []


def _same(one: Any, other: Any) -> bool:
    """Whether two patterns are the same syntax, metavariables and gaps included."""
    if isinstance(one, (list, tuple)):
        return isinstance(other, (list, tuple)) and len(one) == len(other) and all(map(_same, one, other))
    if not isinstance(one, cst.CSTNode):
        return bool(one == other)
    return type(one) is type(other) and all(
        _same(getattr(one, name), getattr(other, name)) for name in syntax_fields(type(one))
    )
