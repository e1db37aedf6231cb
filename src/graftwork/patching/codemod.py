"""Codemod edits: every node pattern of an edit is counted in its scope before anything changes."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import libcst as cst

from graftwork.catalog.patches import Codemod, CodemodHunk
from graftwork.patching import drift, scopes
from graftwork.patching.hunks import Hunk, HunkState, counted
from graftwork.patching.pattern import Binds, Change, Statement, alike, differences, pattern, statements
from graftwork.patching.scopes import Match, Scope


def examine(edit: Codemod, text: str | None) -> list[Hunk]:
    """The state of each hunk of *edit* in *text* (None: the file is missing)."""
    if text is None:
        return [Hunk.missing(edit, i, h.match, "the file does not exist") for i, h in enumerate(edit.hunk)]
    found = scopes.load(text, edit.file, edit.scope)
    if len(found) == 1:
        return [_examine(edit, i, hunk, found[0]) for i, hunk in enumerate(edit.hunk)]
    state = HunkState.AMBIGUOUS if found else HunkState.MISSING
    lines = ", ".join(str(scope.region.first) for scope in found)
    detail = f"{edit.scope} is defined {len(found)} times in {edit.file} (line {lines})"
    detail = detail if found else drift.no_scope(edit.file, edit.scope, text)
    return [Hunk(edit.id, i, edit.file, state, h.match, detail) for i, h in enumerate(edit.hunk)]


def forward(edit: Codemod, text: str) -> str:
    """*text* with all hunks applied; the caller has seen that all are pending."""
    return _rewrite(edit, text, edit.hunk)


def backward(edit: Codemod, text: str) -> str:
    """*text* with all hunks taken out again; the caller has seen that all are done."""
    inverse = [CodemodHunk(match=h.becomes, becomes=h.match) if h.becomes else h for h in edit.hunk]
    return _rewrite(edit, text, inverse, remove=True)


def contains(text: str, path: str, scope: str, snippet: str) -> bool:
    """Whether *scope* of *text* has a node like *snippet*."""
    return any(found.matches(pattern(snippet)) for found in scopes.load(text, path, scope))


def same_syntax(one: bytes, other: bytes) -> bool:
    """Whether two Python sources differ in layout and comments only."""
    try:
        return ast.dump(ast.parse(one)) == ast.dump(ast.parse(other))
    except (SyntaxError, ValueError):
        return False


def _examine(edit: Codemod, index: int, hunk: CodemodHunk, scope: Scope) -> Hunk:
    want = pattern(hunk.match)
    matches = scope.matches(want)
    if hunk.absent:
        state = HunkState.BLOCKED if matches else HunkState.HOLDS
    elif hunk.becomes:
        state = counted(len(matches), len(scope.matches(pattern(hunk.becomes))))
    else:
        runs = sum(len(_runs(hunk, match)) for match in matches)
        # An insertion leaves its anchor in place: the anchor that has the result beside it does not count.
        state = counted(len(matches) - (1 if len(matches) == 1 and runs else 0), runs)
    detail = ""
    if state is HunkState.MISSING:
        detail = drift.nearest_node(hunk.match, type(want), scope)
    elif state in (HunkState.AMBIGUOUS, HunkState.BLOCKED):
        detail = drift.where(matches, scope)
    return Hunk(edit.id, index, edit.file, state, hunk.match, detail)


def _runs(hunk: CodemodHunk, match: Match) -> list[slice]:
    """Where the hunk's inserted statements stand in the block of the matched one, on the hunk's side of it."""
    want = statements(hunk.before or hunk.after)
    first, last = (0, match.position) if hunk.before else (match.position + 1, len(match.block))
    return [
        slice(start, start + len(want))
        for start in range(first, last - len(want) + 1)
        if all(alike(w, h, {}) for w, h in zip(want, match.block[start : start + len(want)], strict=True))
    ]


def _rewrite(edit: Codemod, text: str, hunks: Sequence[CodemodHunk], remove: bool = False) -> str:
    (scope,) = scopes.load(text, edit.file, edit.scope)
    changes: dict[int, list[Change]] = {}
    for hunk in hunks:
        if hunk.absent:
            continue
        (match,) = scope.matches(pattern(hunk.match))
        for node, change in _changes(hunk, match, remove):
            changes.setdefault(id(node), []).append(change)
    return scopes.remember(scope.changed(changes), edit.scope) if changes else text


def _changes(hunk: CodemodHunk, match: Match, remove: bool) -> list[tuple[cst.CSTNode, Change]]:
    if hunk.becomes:
        want = pattern(hunk.match)
        binds: Binds = {}
        alike(want, match.node, binds)
        return differences(want, pattern(hunk.becomes), match.node, binds)
    if remove:
        return _removal(hunk, match)
    line = match.block[match.position]
    new = [statement.deep_clone() for statement in statements(hunk.before or hunk.after)]
    if hunk.after:
        return [(line, lambda node: cst.FlattenSentinel([*_flat(node), *new]))]
    blank = list(line.leading_lines[: _blanks(line)])
    new[0] = new[0].with_changes(leading_lines=[*blank, *new[0].leading_lines])
    return [(line, lambda node: cst.FlattenSentinel([*new, *_flat(node)]))]


def _removal(hunk: CodemodHunk, match: Match) -> list[tuple[cst.CSTNode, Change]]:
    """Take the inserted statements out; comments above them that are not the hunk's stay, above what follows."""
    (run,) = _runs(hunk, match)
    changes: list[tuple[cst.CSTNode, Change]] = []
    foreign = []
    for own, line in zip(statements(hunk.before or hunk.after), match.block[run], strict=True):
        known = {item.comment.value for item in own.leading_lines if item.comment}
        foreign += [item for item in line.leading_lines if item.comment and item.comment.value not in known]
        changes.append((line, lambda _: cst.RemovalSentinel.REMOVE))
    if foreign and run.stop < len(match.block):
        keep = lambda node: node.with_changes(leading_lines=[*foreign, *node.leading_lines])  # noqa: E731
        changes.append((match.block[run.stop], keep))
    return changes


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
