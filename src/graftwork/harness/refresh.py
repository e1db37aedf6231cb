"""A patch cut anew: better anchors for the tree that they stand in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from graftwork.catalog.catalog import Patch
from graftwork.catalog.patches import Anchor, AnchorHunk, Diff, Edit, PatchFile
from graftwork.errors import StateError, UsageError
from graftwork.patching import edits as editing
from graftwork.patching.assess import Engine, assess, edits_for
from graftwork.patching.overlay import Overlay
from graftwork.patching.states import State
from graftwork.upstream import recut


@dataclass(frozen=True)
class Refreshed:
    """The patch.toml to be, other files of the folder to write, what to say; *wanted* is what it makes of the tree."""

    spec: PatchFile
    files: dict[str, bytes]
    kept: tuple[str, ...]
    cut: tuple[str, ...]
    notes: tuple[str, ...]
    wanted: dict[str, bytes | None] = field(repr=False)


def recut_anchors(patch: Patch, base: Overlay, engine: Engine) -> Refreshed:
    """The anchors and diffs in force, as small and as scoped as they can be; what the patch makes stays the same."""
    if assess(patch, base, engine).state is not State.PENDING:
        raise StateError(f"{patch.id} does not apply to {base.origin}", hint="for another release: graftwork rebase")
    over, rows, kept, cut, notes = base.copy(), list(patch.spec.edit), [], [], []
    for edit in edits_for(patch, engine):
        below = over.copy()
        editing.forward(edit, patch.folder, over)
        if not isinstance(edit, (Anchor, Diff)):
            kept.append(edit.id)
            continue
        try:
            fresh = _like(edit, recut.cut_all(texts(below, over)), [row.id for row in rows])
        except UsageError as error:
            notes.append(f"{edit.id} stays: {error.message}")
            kept.append(edit.id)
            continue
        if fresh == [edit]:
            kept.append(edit.id)
            continue
        at = rows.index(edit)
        rows[at : at + 1] = fresh
        cut.append(edit.id)
    spec = msgspec.structs.replace(patch.spec, edit=rows)
    return Refreshed(spec, {}, tuple(kept), tuple(cut), tuple(notes), dict(over.changed))


def texts(below: Overlay, over: Overlay) -> dict[str, tuple[str, str]]:
    """Path -> (text in *below*, text in *over*) of what differs, new files left out."""
    pairs = {
        path: (below.text_of(path), over.text_of(path)) for path in over.changed if below.original(path) is not None
    }
    return {path: (old or "", new or "") for path, (old, new) in pairs.items() if old != new}


def _like(edit: Anchor | Diff, cuts: Sequence[Anchor], taken: Sequence[str]) -> list[Edit]:
    """*cuts* under the id, versions and reasons of the edit that they replace."""
    done: list[Edit] = []
    for number, cut in enumerate(cuts, 1):
        name = edit.id if number == 1 else f"{edit.id}-{number}"
        while number > 1 and name in taken:
            name += "-cut"
        hunks = [_reason(hunk, edit) for hunk in cut.hunk]
        done.append(msgspec.structs.replace(cut, id=name, versions=edit.versions, why=edit.why, hunk=hunks))
    return done


def _reason(hunk: AnchorHunk, edit: Anchor | Diff) -> AnchorHunk:
    """*hunk* with the reason of the old one that it shares most lines with."""
    lines = {line.strip() for line in hunk.find.split("\n") if line.strip()}
    shared = [(len(lines & {line.strip() for line in old.find.split("\n")}), old) for old in getattr(edit, "hunk", [])]
    count, best = max(shared, key=lambda item: item[0], default=(0, hunk))
    return msgspec.structs.replace(hunk, why=best.why, inert=best.inert) if count else hunk
