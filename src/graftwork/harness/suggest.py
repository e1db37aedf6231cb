"""Marker candidates: what a change has in compiled code, and the file before it has not."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Literal

from graftwork.catalog.patches import Marker
from graftwork.patching import regions
from graftwork.patching.check import MODULE, compile_source, functions, has_marker
from graftwork.patching.markers import compiled
from graftwork.upstream.recut import Text, groups

Kind = Literal["local", "name", "attribute", "constant"]

_ORDER: tuple[Kind, ...] = ("local", "name", "attribute", "constant")
_LONGEST = 120  # characters of a string that may serve as a marker


def candidates(path: str, old: str, new: str) -> list[Marker]:
    """What could prove that *new* is compiled in, best first: absent from *old* as a whole, kept by ``python -OO`` too.

    TreeError if a text does not compile. *old* is empty for a new file.
    """
    code, plain = compiled(new, path), compile_source(new.encode("utf-8"), path, optimize=2)
    before = set(_held(compiled(old, path)))
    known = {value for _, value in before}
    found = []
    for function in _functions(path, new):
        attributes = {node.attr for node in ast.walk(_node(path, new, function)) if isinstance(node, ast.Attribute)}
        for raw, value in dict.fromkeys(
            pair for item in functions(code, function) for pair in _held(item, named=False)
        ):
            kind: Kind = "attribute" if raw == "name" and value in attributes else raw
            if value not in known and _distinct(kind, value) and has_marker(plain, function, kind, value):
                found.append(Marker(file=path, function=function, kind=kind, value=value))
    return sorted(found, key=lambda marker: (_ORDER.index(marker.kind), len(marker.value) < 4))


def chosen(found: Sequence[Marker]) -> list[Marker]:
    """The best candidate of each function, so that each end of a change is pinned."""
    best: dict[str, Marker] = {}
    for marker in found:
        best.setdefault(marker.function, marker)
    return list(best.values())


def with_marker(path: str, old: str, new: str, name: str) -> tuple[str, Marker] | None:
    """*new* with a statement ``name = True`` above the first changed statement that can take one, and its marker.

    For a change that leaves nothing of its own in compiled code. None if no place compiles.
    """
    after = Text(path, new)
    changed = [group.new for group in groups(Text(path, old), after)]
    blocks = [node for node in ast.walk(regions.parsed(new, path)) if isinstance(node, ast.stmt)]
    for line in changed:
        around = [node for node in blocks if node.lineno <= line + 1 <= (node.end_lineno or node.lineno)]
        for node in sorted(around, key=lambda item: item.lineno, reverse=True):
            first = min([node.lineno, *(item.lineno for item in getattr(node, "decorator_list", []))])
            indent = after.lines[first - 1][: node.col_offset]
            if indent.strip() or _docstring(node):
                continue
            newline = "\r\n" if after.lines[first - 1].endswith("\r\n") else "\n"
            text = (
                after.slice(0, first - 1) + f"{indent}{name} = True{newline}" + after.slice(first - 1, len(after.lines))
            )
            for marker in _marking(path, text, name):
                return text, marker
    return None


def _docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _marking(path: str, text: str, name: str) -> Iterator[Marker]:
    """The marker that *name* is in *text*; nothing if the text does not compile."""
    try:
        code = compile_source(text.encode("utf-8"), path)
    except SyntaxError:
        return
    wanted: tuple[tuple[str, Kind], ...] = tuple((item, "local") for item in _functions(path, text)[1:])
    for function, kind in (*wanted[::-1], (MODULE, "name")):
        if has_marker(code, function, kind, name):
            yield Marker(file=path, function=function, kind=kind, value=name)
            return


def _functions(path: str, text: str) -> list[str]:
    """The module, then every qualified name that is defined once."""
    names = [name for name, _, _ in regions.definitions(regions.parsed(text, path))]
    return [MODULE, *(name for name in names if names.count(name) == 1)]


def _node(path: str, text: str, function: str) -> ast.AST:
    tree = regions.parsed(text, path)
    return next((node for name, node, _ in regions.definitions(tree) if name == function), tree)


def _held(code: CodeType, named: bool = True) -> Iterator[tuple[Kind, str]]:
    """Locals, names and whole strings of a code object and of those in it; not of *named* ones if so wished."""
    yield from (("local", value) for value in (*code.co_varnames, *code.co_cellvars))
    yield from (("name", value) for value in code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield "constant", constant
        elif isinstance(constant, CodeType) and (named or constant.co_name.startswith("<")):
            yield from _held(constant, named)


def _distinct(kind: Kind, value: str) -> bool:
    """Whether a value is one of ours by its looks: no name of the interpreter's own, no odd text."""
    if kind == "constant":
        return 8 <= len(value) <= _LONGEST and value.isprintable()
    own = value.startswith("__") and value.endswith("__")
    return value.isidentifier() and not own and not hasattr(builtins, value)
