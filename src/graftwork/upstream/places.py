"""Where a patch's anchors stand in a tree: lines, so that other changes can be held against them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from graftwork.catalog.catalog import Patch
from graftwork.catalog.patches import Anchor, Codemod, Diff
from graftwork.patching import regions
from graftwork.patching.assess import Engine, edits_for
from graftwork.patching.overlay import Overlay
from graftwork.trees.tree import Tree

if TYPE_CHECKING:
    from graftwork.patching.scopes import Scope


@dataclass(frozen=True)
class Place:
    """One anchor: ``name`` as in a plan (``rows[1]``), its lines (1-based, inclusive), and their text."""

    name: str
    file: str
    scope: str
    first: int
    last: int
    text: tuple[str, ...]


def places(patch: Patch, tree: Tree, engine: Engine) -> list[Place]:
    """The anchors of *patch* that *tree* has exactly once; a new file is a place too, from its first line on."""
    over = Overlay(tree)
    found: list[Place] = []
    for edit in edits_for(patch, engine):
        if isinstance(edit, Codemod):
            found += _codemod(edit, over)
        elif isinstance(edit, Anchor):
            found += _anchor(edit, over)
        elif isinstance(edit, Diff):
            found += _diff(edit, patch, over)
        else:
            found.append(Place(edit.id, edit.path, "", 1, 1, ()))
    return found


def _codemod(edit: Codemod, over: Overlay) -> list[Place]:
    from graftwork.patching import scopes
    from graftwork.patching.pattern import pattern

    text = over.text_of(edit.file)
    scoped = scopes.load(text, edit.file, edit.scope) if text is not None else []
    if len(scoped) != 1:
        return []
    found = []
    for index, hunk in enumerate(edit.hunk):
        matches = scoped[0].matches(pattern(hunk.match))
        if len(matches) == 1:
            first, last = _lines(scoped[0], matches[0].node)
            found.append(_place(f"{edit.id}[{index + 1}]", edit.file, edit.scope, first, last, scoped[0].text))
    return found


def _lines(scope: Scope, node: object) -> tuple[int, int]:
    """First and last line of a node; of a compound statement only its head, since the body is not the anchor."""
    import libcst as cst

    assert isinstance(node, cst.CSTNode)
    first = scope.line_of(node)
    body = getattr(node, "body", None)
    if isinstance(node, cst.BaseCompoundStatement) and isinstance(body, cst.IndentedBlock) and body.body:
        return first, max(first, scope.line_of(body.body[0]) - 1)
    return first, first + scope.module.code_for_node(node).strip().count("\n")


def _anchor(edit: Anchor, over: Overlay) -> list[Place]:
    text = over.text_of(edit.file)
    if text is None:
        return []
    lines = regions.lines_of(text)
    scoped = regions.find(regions.parsed(text, edit.file), text, edit.scope) if edit.scope else None
    if scoped is not None and len(scoped) != 1:
        return []
    part = (scoped[0].first, scoped[0].last) if scoped else (1, len(lines))
    offset, inner = part[0], "".join(lines[part[0] - 1 : part[1]])
    found = []
    for index, hunk in enumerate(edit.hunk):
        if inner.count(hunk.find) == 1:
            first = offset + inner[: inner.index(hunk.find)].count("\n")
            last = first + hunk.find.rstrip("\n").count("\n")
            found.append(_place(f"{edit.id}[{index + 1}]", edit.file, edit.scope, first, last, text))
    return found


def _diff(edit: Diff, patch: Patch, over: Overlay) -> list[Place]:
    from graftwork.patching import diffs

    found = []
    for index, hunk in enumerate(diffs.load(patch.folder / edit.source, edit.strip)):
        text = over.text_of(hunk.file)
        if text is not None and text.count(hunk.old) == 1:
            first = text[: text.index(hunk.old)].count("\n") + 1
            last = first + hunk.old.rstrip("\n").count("\n")
            found.append(_place(f"{edit.id}[{index + 1}]", hunk.file, "", first, last, text))
    return found


def _place(name: str, file: str, scope: str, first: int, last: int, text: str) -> Place:
    lines = [line.rstrip() for line in regions.lines_of(text)[first - 1 : last]]
    return Place(name, file, scope, first, last, tuple(lines))
