"""Codemod edits: every node pattern is counted before anything changes; only the scope is parsed by libcst."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import libcst as cst

from graftwork.catalog.patches import Codemod, CodemodHunk
from graftwork.errors import TreeError
from graftwork.patching import regions
from graftwork.patching.hunks import Hunk, HunkState, counted
from graftwork.patching.pattern import Binds, Change, Statement, alike, differences, pattern, statements, walk


@dataclass(frozen=True)
class _Scope:
    """The parsed scope and the text around it."""

    before: str
    after: str
    header: str
    module: cst.Module
    first_line: int

    @cached_property
    def nodes(self) -> list[cst.CSTNode]:
        return list(walk(self.module))


@dataclass(frozen=True)
class _Match:
    """One place where a pattern matches: the node and its changes; for a statement its block and position."""

    node: cst.CSTNode
    block: Sequence[Statement]
    position: int


def examine(edit: Codemod, text: str | None) -> list[Hunk]:
    """The state of each hunk of *edit* in *text* (None: the file is missing)."""
    if text is None:
        return [Hunk.missing(edit, i, h.match, "the file does not exist") for i, h in enumerate(edit.hunk)]
    found = regions.find(regions.parsed(text, edit.file), text, edit.scope)
    if len(found) != 1:
        state = HunkState.MISSING if not found else HunkState.AMBIGUOUS
        detail = f"{edit.scope} is defined {len(found)} times in {edit.file}" if found else _no_scope(edit, text)
        return [Hunk(edit.id, i, edit.file, state, h.match, detail) for i, h in enumerate(edit.hunk)]
    scope = _parse(text, found[0], edit.file)
    nodes = scope.nodes
    return [_examine(edit, i, hunk, nodes, scope) for i, hunk in enumerate(edit.hunk)]


def forward(edit: Codemod, text: str) -> str:
    """*text* with all hunks applied; the caller has seen that all are pending."""
    return _rewrite(edit, text, edit.hunk)


def backward(edit: Codemod, text: str) -> str:
    """*text* with all hunks taken out again; the caller has seen that all are done."""
    inverse = [CodemodHunk(match=h.becomes, becomes=h.match) if h.becomes else h for h in edit.hunk if not h.absent]
    return _rewrite(edit, text, inverse, remove=True)


def contains(text: str, path: str, scope: str, snippet: str) -> bool:
    """Whether *scope* of *text* has a node like *snippet*."""
    found = regions.find(regions.parsed(text, path), text, scope)
    want = pattern(snippet)
    return any(_matches(want, _parse(text, region, path).nodes) for region in found)


def _no_scope(edit: Codemod, text: str) -> str:
    import difflib

    names = [name for name, _, _ in regions.definitions(regions.parsed(text, edit.file))]
    last = edit.scope.rpartition(".")[2]
    near = [name for name in names if name.rpartition(".")[2] == last]
    near += [name for name in difflib.get_close_matches(edit.scope, names, 2, 0.7) if name not in near]
    return f"{edit.scope} is not defined in {edit.file}" + (f"; nearest: {', '.join(near[:3])}" if near else "")


@lru_cache(maxsize=16)
def _parse(text: str, region: regions.Region, path: str) -> _Scope:
    lines = regions.lines_of(text)
    newline = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    header = "".join(f"{indent}if True:{newline}" for indent in region.parents)
    body = "".join(lines[region.first - 1 : region.last])
    try:
        module = cst.parse_module(header + body)
    except (cst.ParserSyntaxError, RecursionError) as error:
        raise TreeError(f"{path}: libcst cannot parse lines {region.first}-{region.last}: {error}") from None
    before, after = "".join(lines[: region.first - 1]), "".join(lines[region.last :])
    return _Scope(before, after, header, module, region.first)


def _matches(want: cst.CSTNode, nodes: Sequence[cst.CSTNode]) -> list[_Match]:
    found = []
    statement = isinstance(want, (cst.BaseSmallStatement, cst.BaseCompoundStatement))
    if not statement:
        return [_Match(node, (), 0) for node in nodes if type(node) is type(want) and alike(want, node, {})]
    for node in nodes:
        block: Sequence[Any] = node.body if isinstance(node, (cst.Module, cst.IndentedBlock)) else ()
        for position, line in enumerate(block):
            inner = line.body if isinstance(line, cst.SimpleStatementLine) else (line,)
            found += [_Match(item, block, position) for item in inner if alike(want, item, {})]
    return found


def _examine(edit: Codemod, index: int, hunk: CodemodHunk, nodes: list[cst.CSTNode], scope: _Scope) -> Hunk:
    matches = _matches(pattern(hunk.match), nodes)
    if hunk.absent:
        state = HunkState.BLOCKED if matches else HunkState.HOLDS
        return Hunk(edit.id, index, edit.file, state, hunk.match, _where(matches, scope, edit) if matches else "")
    if hunk.becomes:
        done = len(_matches(pattern(hunk.becomes), nodes))
        state = counted(len(matches), done)
    else:
        runs = sum(len(_runs(hunk, match)) for match in matches)
        state = counted(len(matches) - (1 if len(matches) == 1 and runs else 0), runs)
    if state is HunkState.MISSING:
        return Hunk(edit.id, index, edit.file, state, hunk.match, _nearest(hunk.match, nodes, scope, edit))
    detail = _where(matches, scope, edit) if state is HunkState.AMBIGUOUS else ""
    return Hunk(edit.id, index, edit.file, state, hunk.match, detail)


def _runs(hunk: CodemodHunk, match: _Match) -> list[slice]:
    """Where the hunk's inserted statements stand in the block of the matched one, on the hunk's side of it."""
    want = statements(hunk.before or hunk.after)
    sides = (0, match.position) if hunk.before else (match.position + 1, len(match.block))
    return [
        slice(start, start + len(want))
        for start in range(sides[0], sides[1] - len(want) + 1)
        if all(alike(w, h, {}) for w, h in zip(want, match.block[start : start + len(want)], strict=True))
    ]


def _rewrite(edit: Codemod, text: str, hunks: Sequence[CodemodHunk], remove: bool = False) -> str:
    (region,) = regions.find(regions.parsed(text, edit.file), text, edit.scope)
    scope = _parse(text, region, edit.file)
    nodes = scope.nodes
    changes: dict[int, list[Change]] = {}
    for hunk in hunks:
        if hunk.absent:
            continue
        (match,) = _matches(pattern(hunk.match), nodes)
        for node, change in _changes(hunk, match, remove):
            changes.setdefault(id(node), []).append(change)
    module = scope.module.visit(_Apply(changes))
    written = module.code
    again = cst.parse_module(written)
    if not alike(module, again, {}):
        raise TreeError(f"{edit.file}: edit {edit.id!r} does not read back as written; a replacement needs parentheses")
    return scope.before + written[len(scope.header) :] + scope.after


def _changes(hunk: CodemodHunk, match: _Match, remove: bool) -> list[tuple[cst.CSTNode, Change]]:
    if hunk.becomes:
        want = pattern(hunk.match)
        binds: Binds = {}
        alike(want, match.node, binds)
        return differences(want, pattern(hunk.becomes), match.node, binds)
    if remove:
        (run,) = _runs(hunk, match)
        return [(line, lambda _: cst.RemovalSentinel.REMOVE) for line in match.block[run]]
    line = match.block[match.position]
    new = [statement.deep_clone() for statement in statements(hunk.before or hunk.after)]
    if hunk.after:
        return [(line, lambda node: cst.FlattenSentinel([*_flat(node), *new]))]
    blank = list(line.leading_lines[: _blanks(line)])
    new[0] = new[0].with_changes(leading_lines=[*blank, *new[0].leading_lines])
    return [(line, lambda node: cst.FlattenSentinel([*new, *_flat(node)]))]


def _blanks(line: Statement) -> int:
    """How many blank lines stand above a statement and its comments."""
    count = 0
    for item in line.leading_lines:
        if item.comment is not None:
            break
        count += 1
    return count


def _flat(node: cst.CSTNode | cst.FlattenSentinel[cst.CSTNode]) -> list[cst.CSTNode]:
    return list(node) if isinstance(node, cst.FlattenSentinel) else [node]


class _Apply(cst.CSTTransformer):
    """Applies changes to nodes by identity, innermost first."""

    def __init__(self, changes: dict[int, list[Change]]) -> None:
        super().__init__()
        self.changes = changes

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        for change in self.changes.get(id(original_node), ()):
            updated_node = change(updated_node)
        return updated_node


def _line_of(node: cst.CSTNode, scope: _Scope) -> int:
    """The line of *node* in the file. Positions cost a rendering of the scope: for messages only."""
    from libcst.metadata import MetadataWrapper, PositionProvider

    positions = MetadataWrapper(scope.module, unsafe_skip_copy=True).resolve(PositionProvider)
    return scope.first_line + positions[node].start.line - 1 - scope.header.count("\n")


def _where(matches: Sequence[_Match], scope: _Scope, edit: Codemod) -> str:
    lines = ", ".join(str(_line_of(match.node, scope)) for match in matches)
    return f"matches {len(matches)} times in {edit.file} (line {lines})"


def _nearest(snippet: str, nodes: Sequence[cst.CSTNode], scope: _Scope, edit: Codemod) -> str:
    """What looks most like the missing pattern, and where."""
    import difflib

    want = pattern(snippet)
    best: tuple[float, str, cst.CSTNode] | None = None
    for node in nodes:
        if type(node) is not type(want):
            continue
        code = scope.module.code_for_node(node).strip()
        ratio = difflib.SequenceMatcher(None, snippet, code[: 4 * len(snippet)]).ratio()
        if best is None or ratio > best[0]:
            best = (ratio, code, node)
    if best is None or best[0] < 0.4:
        return f"nothing like it in {edit.scope or edit.file}"
    first = best[1].splitlines()
    shown = first[0] if len(first) == 1 else " ".join(line.strip() for line in first)[:160]
    return f"nearest candidate, {edit.file}:{_line_of(best[2], scope)}: {shown}"


def same_syntax(one: bytes, other: bytes) -> bool:
    """Whether two Python sources differ in layout and comments only."""
    import ast

    try:
        return ast.dump(ast.parse(one)) == ast.dump(ast.parse(other))
    except (SyntaxError, ValueError):
        return False
