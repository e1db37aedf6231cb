"""Finding one function or class in a source text by its qualified name, without executing anything."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from graftwork.errors import TreeError

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Region:
    """Lines ``[first, last]`` (1-based, inclusive) of a definition; ``parents`` are its parents' indents."""

    first: int
    last: int
    parents: tuple[str, ...]


@lru_cache(maxsize=16)
def lines_of(text: str) -> list[str]:
    """*text* in lines as Python counts them, line ends kept (``str.splitlines`` also splits at form feeds)."""
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text)


@lru_cache(maxsize=16)
def parsed(text: str, path: str) -> ast.Module:
    """The syntax tree of *text*; TreeError with the line if it is not Python."""
    try:
        return ast.parse(text, path)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f"{path}:{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else path
        raise TreeError(f"{where}: not Python source: {getattr(error, 'msg', None) or error}") from None


def definitions(tree: ast.Module) -> Iterator[tuple[str, _Definition, tuple[_Definition, ...]]]:
    """Every (qualified name, definition, enclosing definitions), also below ``if`` and ``try``."""

    def visit(
        node: ast.AST, parents: tuple[_Definition, ...]
    ) -> Iterator[tuple[str, _Definition, tuple[_Definition, ...]]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _Definition):
                yield ".".join([*(p.name for p in parents), child.name]), child, parents
                yield from visit(child, (*parents, child))
            elif isinstance(child, (ast.stmt, ast.ExceptHandler)):
                yield from visit(child, parents)

    return visit(tree, ())


def find(tree: ast.Module, text: str, scope: str) -> list[Region]:
    """The regions of every definition called *scope*; the whole text for the empty scope."""
    lines = lines_of(text)
    if not scope:
        return [Region(1, max(len(lines), 1), ())]
    found = []
    for name, node, _ in definitions(tree):
        if name != scope:
            continue
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        found.append(Region(first, node.end_lineno or node.lineno, _indents(lines, first)))
    return found


def defined(tree: ast.Module, scope: str) -> bool:
    """Whether *scope* is the qualified name of a definition, or of a name assigned at module level."""
    if any(name == scope for name, _, _ in definitions(tree)):
        return True
    targets: list[ast.expr] = []
    for node in tree.body:
        targets += node.targets if isinstance(node, ast.Assign) else []
        targets += [node.target] if isinstance(node, (ast.AnnAssign, ast.AugAssign)) else []
    return any(isinstance(target, ast.Name) and target.id == scope for target in targets)


def _indents(lines: list[str], first: int) -> tuple[str, ...]:
    """Indents of the blocks around line *first*, outermost first, its own excluded."""
    indents: list[str] = []
    current = _indent(lines[first - 1])
    for line in reversed(lines[: first - 1]):
        indent = _indent(line)
        if line.strip() and not line.lstrip().startswith("#") and len(indent) < len(current):
            indents.append(indent)
            current = indent
        if not current:
            break
    return tuple(reversed(indents))


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]
