"""Anchors turned into codemods, where the change is one of whole statements and the result the same to the byte."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping, Sequence

from graftwork.catalog.patches import Anchor, Codemod, CodemodHunk
from graftwork.errors import GraftworkError
from graftwork.patching import anchors, regions
from graftwork.patching.hunks import HunkState
from graftwork.upstream import recut
from graftwork.upstream.recut import Group, Text, groups


def cut_best(changes: Mapping[str, tuple[str, str]]) -> list[Anchor | Codemod]:
    """The edits of several files (path -> before and after): codemods where they can be, else anchors."""
    edits = recut.cut_all(changes)
    made: list[Anchor | Codemod] = []
    for path, (old, new) in changes.items():
        made += codemods([edit for edit in edits if edit.file == path], path, old, new)
    return made


def codemods(edits: Sequence[Anchor], path: str, old: str, new: str) -> list[Anchor | Codemod]:
    """*edits*, which turn *old* into *new*, each as a codemod if it can be one."""
    if not path.endswith(".py"):
        return list(edits)
    done: list[Anchor | Codemod] = []
    text = old
    for edit in edits:
        after = anchors.forward(edit, text)
        made = _codemod(edit, path, text, after)
        done.append(made if made is not None and _same(made, text, after, new) else edit)
        text = after
    return done


def _codemod(edit: Anchor, path: str, before: str, after: str) -> Codemod | None:
    """The edit by node patterns; None where a changed run of lines is not one of whole statements."""
    old, new = Text(path, before), Text(path, after)
    was, now = _statements(path, before), _statements(path, after)
    hunks: list[CodemodHunk] = []
    for group in groups(old, new):
        hunk = _inserted(old, new, was, group) if group.old == group.old_end else _replaced(old, new, was, now, group)
        if hunk is None or not all(map(_is_statements, filter(None, (hunk.match, hunk.becomes)))):
            return None  # an elif, for one, cannot stand alone
        if hunk not in hunks:
            hunks.append(hunk)
    return Codemod(id=edit.id, file=edit.file, scope=edit.scope, versions=edit.versions, why=edit.why, hunk=hunks)


def _same(made: Codemod, before: str, after: str, final: str) -> bool:
    """Whether the codemod is pending before, makes the same bytes, is done in the end, and leads back."""
    from libcst import ParserSyntaxError

    from graftwork.patching import codemod

    try:
        return (
            all(hunk.state is HunkState.PENDING for hunk in codemod.examine(made, before))
            and codemod.forward(made, before) == after
            and all(hunk.state is HunkState.DONE for text in (after, final) for hunk in codemod.examine(made, text))
            and codemod.backward(made, after) == before
        )
    except (GraftworkError, ParserSyntaxError, ValueError):
        return False  # a snippet that no pattern can be made of, or that regroups the code around it


def _statements(path: str, text: str) -> list[ast.stmt]:
    """Every statement, outer ones first."""
    return [node for node in ast.walk(regions.parsed(text, path)) if isinstance(node, ast.stmt)]


def _first(node: ast.stmt) -> int:
    first: int = min([node.lineno, *(item.lineno for item in getattr(node, "decorator_list", []))])
    return first - 1


def _inserted(old: Text, new: Text, was: list[ast.stmt], group: Group) -> CodemodHunk | None:
    """Whole statements below the statement that ends above them, else above the one that begins below them."""
    text = new.slice(group.new, group.new_end)
    snippet = textwrap.dedent(text).strip("\n") + "\n"
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines or not _is_statements(snippet):
        return None
    indent = min(len(line) - len(line.lstrip()) for line in lines)
    beside = [node for node in was if node.col_offset == indent and not isinstance(node, ast.Expr)]
    for node in beside:  # a bare call or a text is an expression, and nothing stands below an expression
        if node.end_lineno == group.old:
            return CodemodHunk(match=_pattern(old, node), after=snippet)
    for node in beside:
        if _first(node) == group.old:
            return CodemodHunk(match=_pattern(old, node), before=snippet)
    return None


def _replaced(old: Text, new: Text, was: list[ast.stmt], now: list[ast.stmt], group: Group) -> CodemodHunk | None:
    """One simple statement, or the head of a compound one, into its like."""
    before = _innermost(was, group.old, group.old_end)
    after = _innermost(now, group.new, group.new_end)
    if before is None or after is None or type(before) is not type(after):
        return None
    return CodemodHunk(match=_pattern(old, before), becomes=_pattern(new, after))


def _innermost(parts: list[ast.stmt], start: int, end: int) -> ast.stmt | None:
    """The smallest statement that holds the lines; of a compound one, only if they are in its head."""
    for node in reversed(parts):
        body = getattr(node, "body", None)
        last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
        if _first(node) <= start and end <= last:
            return node
    return None


def _pattern(text: Text, node: ast.stmt) -> str:
    """A statement as a pattern: all of a simple one, the head of a compound one with any body."""
    last = node.end_lineno or node.lineno
    body = getattr(node, "body", None)
    if not body or isinstance(node, (ast.Try, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return textwrap.dedent(text.slice(_first(node), last)).strip("\n")
    head = textwrap.dedent(text.slice(_first(node), body[0].lineno - 1)).rstrip()
    return f"{head} ..." if head.endswith(":") else textwrap.dedent(text.slice(_first(node), last)).strip("\n")


def _is_statements(snippet: str) -> bool:
    try:
        return bool(ast.parse(snippet).body)
    except (SyntaxError, ValueError):
        return False
