"""What moved under an edit that no longer applies, against a release in which it did."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
from packaging.version import Version

from graftwork.catalog.catalog import Patch
from graftwork.errors import MissingFile
from graftwork.names import RelPath, Sha256
from graftwork.patching import regions
from graftwork.patching.assess import Engine
from graftwork.trees.cache import Cache
from graftwork.upstream.matrix_cells import Cell, EditCell, HunkCell, Move
from graftwork.upstream.places import Place, places

Hashes = Mapping[str, Sha256 | None]
_GOOD = ("pending", "done", "holds")
_AROUND = 3  # lines on each side of an anchor in which a change counts as near
_MOST = 14  # lines of a diff that are shown
_LARGE = 1000  # lines


@dataclass(frozen=True)
class Comparison:
    """An edit that does not apply, and the release ``other`` in which it did: an ``older`` one, else a newer.

    ``old`` and ``new`` are the sha256 of the edited files in the other release and in this one.
    """

    patch: Patch
    edit: EditCell
    other: str
    older: bool
    old: Hashes
    new: Hashes


def comparisons(
    patches: Iterable[Patch], cells: Sequence[Cell], hashes: Mapping[str, Hashes]
) -> Iterator[tuple[int, int, Comparison]]:
    """(number of the cell, number of the edit in it, what to compare) for each edit that applied elsewhere.

    *hashes* are those of each release, in the order of releases.
    """
    by_id, order = {patch.id: patch for patch in patches}, list(hashes)
    rows: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        rows.setdefault(cell.patch, {})[cell.version] = cell
    for number, cell in enumerate(cells):
        for position, edit in enumerate(cell.edits):
            found = None if edit.state in _GOOD else _reference(rows[cell.patch], order, cell.version, edit.id)
            if found is not None:
                other, older = found
                asked = Comparison(by_id[cell.patch], edit, other, older, hashes[other], hashes[cell.version])
                yield number, position, asked


def _reference(row: Mapping[str, Cell], order: Sequence[str], version: str, edit: str) -> tuple[str, bool] | None:
    """(the newest older release where *edit* applied, True), else (the oldest newer one, False), else None."""
    here = order.index(version)
    for other, older in [*((v, True) for v in reversed(order[:here])), *((v, False) for v in order[here + 1 :])]:
        if any(found.id == edit and found.state == "pending" for found in row[other].edits):
            return other, older
    return None


def compare(asked: Comparison, cache: Cache) -> EditCell:
    """The edit with what moved under each of its hunks; the texts come from *cache*, where reading left them."""
    old, new = _Texts(asked.old, cache), _Texts(asked.new, cache)
    alone = [edit for edit in asked.patch.spec.edit if edit.id == asked.edit.id]
    patch = replace(asked.patch, spec=msgspec.structs.replace(asked.patch.spec, edit=alone))
    there = {place.name: place for place in places(patch, old, Engine(Version(asked.other), ""))}
    moves = [_moved(hunk, there.get(hunk.name), old, new) for hunk in asked.edit.hunks if hunk.state not in _GOOD]
    named = {"last_applied" if asked.older else "first_applied": asked.other}
    return msgspec.structs.replace(asked.edit, moved=moves, **named)


@dataclass(frozen=True)
class _Texts:
    """The edited files of a release as a tree."""

    hashes: Hashes
    cache: Cache
    origin = "the cache"

    def read(self, path: RelPath) -> bytes:
        sha256 = self.hashes.get(path)
        data = self.cache.get(sha256) if sha256 else None
        if data is None:
            raise MissingFile(f"{path}: not in {self.origin}")
        return data

    def exists(self, path: RelPath) -> bool:
        return self.hashes.get(path) is not None

    def paths(self) -> Iterable[RelPath]:
        return (RelPath(path) for path in self.hashes)

    def text(self, path: str) -> str | None:
        return self.read(RelPath(path)).decode("utf-8") if self.exists(RelPath(path)) else None


def _moved(hunk: HunkCell, place: Place | None, old: _Texts, new: _Texts) -> Move:
    """Where the anchor of *hunk* was, and what differs there now. A variant of the edit may name another file."""
    if place is None:
        return Move(hunk=hunk.name, was="", now=hunk.detail)
    was = f"{place.file}:{place.first}: {place.text[0].strip()[:120] if place.text else ''}"
    before, after = old.text(place.file), new.text(place.file)
    diff = _near(before, after, place) if before is not None and after is not None else []
    return Move(hunk=hunk.name, was=was, now=hunk.detail, diff=diff)


def _near(old: str, new: str, place: Place) -> list[str]:
    """The lines of the scope that differ within a few lines of *place*, as ``- old`` and ``+ new``."""
    before, after = (regions.find(regions.parsed(text, place.file), text, place.scope) for text in (old, new))
    if len(before) != 1 or len(after) != 1:
        return []
    one = regions.lines_of(old)[before[0].first - 1 : before[0].last]
    other = regions.lines_of(new)[after[0].first - 1 : after[0].last]
    low, high = place.first - before[0].first - _AROUND, place.last - before[0].first + 1 + _AROUND
    shown = []
    large = len(other) > _LARGE  # a whole module: its many equal lines would make an exact comparison slow
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, one, other, autojunk=large).get_opcodes():
        if tag != "equal" and i1 < high and max(i2, i1 + 1) > low:
            shown += [f"- {line.rstrip()}" for line in one[i1:i2]] + [f"+ {line.rstrip()}" for line in other[j1:j2]]
    return shown if len(shown) <= _MOST else [*shown[: _MOST - 1], f"… {len(shown) - _MOST + 1} more lines"]
