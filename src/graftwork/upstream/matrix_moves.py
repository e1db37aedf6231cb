"""What moved under an edit that no longer applies, against a release in which it did."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import NamedTuple

from graftwork.catalog.patches import Anchor, Codemod, Diff, Edit
from graftwork.patching import diffs, regions
from graftwork.upstream.matrix_cells import HunkCell, Move

_AROUND = 3  # lines on each side of an anchor in which a change counts as near
_MOST = 14  # lines of a diff that are shown


class Place(NamedTuple):
    """Lines of a file (1-based, inclusive)."""

    first: int
    last: int


def moved(edit: Edit, folder: Path, index: int, hunk: HunkCell, old: str | None, new: str | None) -> Move:
    """Compare hunk *index* of *edit* in *old*, where its anchor is, with *new*, where it is not (None: no file)."""
    place = locate(edit, folder, index, old) if old is not None else None
    if old is None or place is None:
        return Move(hunk=hunk.name, was="", now=hunk.detail)
    line = regions.lines_of(old)[place.first - 1].strip()
    was = f"{hunk.file}:{place.first}: {line[:120]}"
    if new is None:
        return Move(hunk=hunk.name, was=was, now=hunk.detail)
    scope = getattr(edit, "scope", "")
    return Move(hunk=hunk.name, was=was, now=hunk.detail, diff=_near(old, new, hunk.file, scope, place))


def locate(edit: Edit, folder: Path, index: int, text: str) -> Place | None:
    """Where the anchor of hunk *index* stands in *text*; None where it does not, or not once."""
    if isinstance(edit, Codemod):
        return _node(edit, index, text)
    if isinstance(edit, Anchor):
        find = edit.hunk[index].find
        region = _region(text, edit.file, edit.scope)
        start = sum(map(len, regions.lines_of(text)[: region.first - 1])) if region else 0
        return _lines(text, find, start)
    if isinstance(edit, Diff):
        return _lines(text, diffs.load(folder / edit.source, edit.strip)[index].old, 0)
    return None


def _node(edit: Codemod, index: int, text: str) -> Place | None:
    from graftwork.patching import scopes
    from graftwork.patching.pattern import pattern

    found = scopes.load(text, edit.file, edit.scope)
    matches = found[0].matches(pattern(edit.hunk[index].match)) if len(found) == 1 else []
    if len(matches) != 1:
        return None
    line = found[0].line_of(matches[0].node)
    return Place(line, line)


def _lines(text: str, find: str, start: int) -> Place | None:
    at = text.find(find, start)
    if at < 0:
        return None
    first = text.count("\n", 0, at) + 1
    return Place(first, first + max(0, find.rstrip("\n").count("\n")))


def _region(text: str, path: str, scope: str) -> regions.Region | None:
    """The one region of *scope*, or None."""
    found = regions.find(regions.parsed(text, path), text, scope)
    return found[0] if len(found) == 1 else None


def _near(old: str, new: str, path: str, scope: str, place: Place) -> list[str]:
    """The lines of the scope that differ within a few lines of *place*, as ``- old`` and ``+ new``."""
    before, after = _region(old, path, scope), _region(new, path, scope)
    if before is None or after is None:
        return []
    one = regions.lines_of(old)[before.first - 1 : before.last]
    other = regions.lines_of(new)[after.first - 1 : after.last]
    low, high = place.first - before.first - _AROUND, place.last - before.first + 1 + _AROUND
    shown = []
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        if tag != "equal" and i1 < high and max(i2, i1 + 1) > low:
            shown += [f"- {line.rstrip()}" for line in one[i1:i2]] + [f"+ {line.rstrip()}" for line in other[j1:j2]]
    return shown if len(shown) <= _MOST else [*shown[: _MOST - 1], f"… {len(shown) - _MOST + 1} more lines"]
