"""A patch on another release: a three-way proposal from what the old one had, what we changed, and what the new has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
from packaging.version import Version

from graftwork.catalog.catalog import Patch
from graftwork.catalog.patches import Anchor, Codemod, Edit, Marker, NewFile, PatchFile
from graftwork.catalog.versions import joined, matches, overlap, since, until, widened
from graftwork.errors import ObsoleteError, StateError, UsageError
from graftwork.patching import edits as editing
from graftwork.patching import markers
from graftwork.patching.assess import Assessment, Engine, assess, edits_for
from graftwork.patching.overlay import Overlay
from graftwork.patching.plan import plan
from graftwork.patching.states import State
from graftwork.trees.tree import Tree
from graftwork.upstream.cut_codemod import cut_best
from graftwork.upstream.git import merge
from graftwork.upstream.partial import READY, compose, mended, reason_of, remainder

Hunked = Codemod | Anchor
Candidates = Callable[[str, str, str], Sequence[Marker]]
"""(path, text without the patch, text with it) -> what could be its marker, best first."""

_MARKS = (b"<<<<<<< ", b">>>>>>> ")


@dataclass(frozen=True)
class Rebased:
    """What was found. *spec* is the patch.toml to be, None while *conflicts* (paths) are open.

    *merged* are the files as merged, conflicts marked. *kept* edits still apply, *lost* ones are cut anew.
    """

    spec: PatchFile | None
    merged: dict[str, bytes]
    conflicts: tuple[str, ...]
    kept: tuple[str, ...]
    lost: tuple[str, ...]
    notes: tuple[str, ...]


def rebase(
    patch: Patch,
    base: Tree,
    old: Engine,
    onto: Tree,
    new: Engine,
    candidates: Candidates,
    resolved: Mapping[str, bytes] | None = None,
) -> Rebased:
    """Carry *patch* from *base*, where it applies, to *onto*. *candidates* finds a marker
    where the new release keeps none of the old ones; *resolved* are merged files that a person has settled.

    Where it applies as it is, *spec* is the one that it has. ObsoleteError where the new release needs no patch.
    """
    item = _wanted(patch, onto, new)
    if item.state is State.PENDING:
        return Rebased(patch.spec, {}, (), tuple(_ids(edits_for(patch, new))), (), ())
    if all(hunk.state in READY for hunk in item.hunks) and item.hunks:
        spec = msgspec.structs.replace(patch.spec, versions=widened(patch.spec.versions, new.version))
        return Rebased(_held(patch, spec, onto, new, {}), {}, (), tuple(_ids(edits_for(patch, new))), (), ())
    if assess(patch, Overlay(base), old).state is not State.PENDING:
        raise StateError(
            f"{patch.id} does not apply to {base.origin} either", hint="name a release where it does: --from V"
        )
    attempts = []
    for whole in (False, True):  # git may merge whole edits where single hunks stand too close to what has changed
        kept, parts, below = _kept(patch, onto, new, () if whole else edits_for(patch, old))
        stem, ours = _split(patch, base, old, {edit.id for edit in kept}, parts)
        attempts.append((kept, parts, below, *_merged(stem, ours, below, (str(old.version), str(new.version)))))
    kept, parts, below, merged, conflicts, notes = min(attempts, key=lambda attempt: bool(attempt[4]))
    for path, data in (resolved or {}).items():
        if path not in merged:
            raise UsageError(f"{path}: not among the files to settle: {', '.join(merged) or 'none'}")
        if any(line.startswith(_MARKS) for line in data.split(b"\n")):
            raise UsageError(f"{path}: conflict marks are left in it", hint="settle each conflict, then run again")
        merged[path] = data
    left = [path for path in conflicts if path not in (resolved or {})]
    lost = [edit.id for edit in edits_for(patch, old) if edit.id not in {keep.id for keep in kept}]
    if left:
        return Rebased(None, merged, tuple(left), tuple(_ids(kept)), tuple(dict.fromkeys(lost)), tuple(notes))
    over = below.copy()
    for path, data in merged.items():
        over.put(path, data)
    spec, more = _spec(patch, kept, parts, below, over, old.version, new.version, candidates)
    spec = _held(patch, spec, onto, new, {path: over.bytes_of(path) for path in over.differing()})
    return Rebased(spec, merged, (), tuple(_ids(kept)), tuple(dict.fromkeys(lost)), (*notes, *more))


def _wanted(patch: Patch, onto: Tree, engine: Engine) -> Assessment:
    item = assess(patch, Overlay(onto), engine)
    reason = "; ".join(item.reasons)
    if item.state in (State.OBSOLETE, State.NOT_NEEDED):
        raise ObsoleteError(
            f"{patch.id} is {item.state.value} in {engine.version}: {reason}", hint="nothing to carry over"
        )
    if item.state in (State.APPLIED, State.OUTDATED):
        raise StateError(
            f"{patch.id} is {item.state.value} in {onto.origin}", hint="give the pristine tree of the release"
        )
    return item


def _kept(
    patch: Patch, onto: Tree, engine: Engine, old: Sequence[Edit]
) -> tuple[list[Edit], dict[str, Hunked], Overlay]:
    """The edits that still apply, what still does of others that *old* has too (by id), and the tree with all that."""
    kept: list[Edit] = []
    parts: dict[str, Hunked] = {}
    over = Overlay(onto)
    for edit in edits_for(patch, engine):
        hunks = editing.examine(edit, patch.folder, over)
        if all(hunk.state in READY for hunk in hunks):
            kept.append(edit)
            editing.forward(edit, patch.folder, over)
            continue
        part = remainder(edit, hunks, READY)
        if part is not None and edit in old:
            parts[edit.id] = part
            editing.forward(part, patch.folder, over)
    return kept, parts, over


def _split(
    patch: Patch, base: Tree, engine: Engine, ids: set[str], parts: Mapping[str, Hunked]
) -> tuple[Overlay, Overlay]:
    """The old tree with what still applies, and with the whole patch: between the two lies what is carried over."""
    stem, ours = Overlay(base), Overlay(base)
    for edit in edits_for(patch, engine):
        editing.forward(edit, patch.folder, ours)
        stays = edit if edit.id in ids else parts.get(edit.id)
        if stays is not None:
            editing.forward(stays, patch.folder, stem)
    return stem, ours


def _merged(
    stem: Overlay, ours: Overlay, below: Overlay, names: tuple[str, str]
) -> tuple[dict[str, bytes], list[str], list[str]]:
    """(files as merged, those with conflicts, what to know)."""
    merged: dict[str, bytes] = {}
    conflicts, notes = [], []
    for path in sorted(set(ours.changed) | set(stem.changed)):
        old, mine, theirs = stem.bytes_of(path), ours.bytes_of(path), below.bytes_of(path)
        if mine is None or old == mine:
            continue
        if theirs is None and old is not None:
            same = [other for other in below.paths() if other.endswith("/" + path.rpartition("/")[2])]
            notes.append(f"{path} is not in {names[1]}" + (f"; of that name: {', '.join(same[:3])}" if same else ""))
            conflicts.append(path)
            merged[path] = mine
            continue
        labels = (f"{names[0]} with the patch", names[0], names[1])
        merged[path], count = merge(mine, old or b"", theirs or b"", labels)
        if count:
            conflicts.append(path)
    return merged, conflicts, notes


def _spec(
    patch: Patch,
    kept: Sequence[Edit],
    parts: Mapping[str, Hunked],
    below: Overlay,
    over: Overlay,
    old: Version,
    new: Version,
    candidates: Candidates,
) -> tuple[PatchFile, list[str]]:
    """patch.toml with variants for the new release, the old ones ending before it."""
    later = new > old
    stock = Overlay(below.tree)
    gone = [edit for edit in edits_for(patch, Engine(old, "")) if edit not in kept and edit.id not in parts]
    cuts = _cuts(below, over, gone)
    rows: list[Edit] = []
    for mend in (True, False):  # into the gaps of the edits if that holds, else behind them
        rows = _rows(patch, kept, parts, cuts, new, later, mend)
        if compose([edit for edit in rows if matches(edit.versions, new)], patch.folder, stock, over, {}):
            break
    marks, notes = _markers(patch, over, new, later, candidates)
    width = widened(patch.spec.versions, new)
    return msgspec.structs.replace(patch.spec, edit=rows, marker=marks, versions=width), notes


def _rows(
    patch: Patch,
    kept: Sequence[Edit],
    parts: Mapping[str, Hunked],
    cuts: Sequence[Edit],
    new: Version,
    later: bool,
    mend: bool,
) -> list[Edit]:
    """All edits: lost ones end before the new release, and what stays of them begins there, with the cuts if *mend*."""
    lost = [edit for edit in edits_for(patch, Engine(new, "")) if edit not in kept]
    rows: list[Edit] = []
    left = list(cuts)
    for edit in patch.spec.edit:
        ended = edit in lost
        rows.append(msgspec.structs.replace(edit, versions=until(edit.versions, new, later)) if ended else edit)
        part = parts.get(edit.id) if ended else None
        if part is not None and mend:
            part, left = mended(edit, part, left)
        if part is not None:
            rows.append(msgspec.structs.replace(part, versions=joined(part.versions, since(new, later))))
    taken = {edit.id for edit in kept} | set(parts)
    for cut in left:
        name = next(name for n in range(1, 99) if (name := cut.id if n == 1 else f"{cut.id}-{n}") not in taken)
        taken.add(name)
        span = since(new, later)
        if any(edit.id == name and overlap(edit.versions, span) for edit in rows):
            span = f"=={new}"
        rows.append(msgspec.structs.replace(cut, id=name, versions=span))
    return rows


def _cuts(below: Overlay, over: Overlay, lost: Sequence[Edit]) -> list[Anchor | Codemod]:
    """The edits between the two trees, called as the lost ones in the same place, with their reasons."""
    texts = {}
    for path in over.changed:
        old, new = below.text_of(path), over.text_of(path)
        if new is not None and old is not None and old != new:
            texts[path] = (old, new)
        elif old is None:
            raise StateError(f"{path} is not in the new release", hint="write this edit by hand: the code has moved")
    free, found = [edit for edit in lost if not isinstance(edit, NewFile)], []
    for cut in cut_best(texts):
        places = [edit for edit in free if getattr(edit, "file", "") == cut.file]
        same = [edit for edit in places if getattr(edit, "scope", "") == cut.scope] or places
        if same:
            free.remove(same[0])
            cut = msgspec.structs.replace(cut, id=same[0].id, why=reason_of(same[0]))
        found.append(cut)
    return found


def _markers(
    patch: Patch, over: Overlay, new: Version, later: bool, candidates: Candidates
) -> tuple[list[Marker], list[str]]:
    """The markers; one that the new release has in another function moves there, one that it lost is replaced."""
    rows, notes = [], []
    for marker in patch.spec.marker:
        rows.append(marker)
        if not matches(marker.versions, new) or markers.present(marker, over):
            continue
        rows[-1] = msgspec.structs.replace(marker, versions=until(marker.versions, new, later))
        there = markers.where(marker, over)
        if len(there) == 1:
            rows.append(msgspec.structs.replace(marker, function=there[0], versions=since(new, later)))
            continue
        before = Overlay(over.tree).text_of(marker.file) or ""
        found = candidates(marker.file, before, over.text_of(marker.file) or "")
        if not found:
            hint = "give a changed statement a name of its own, in the files of --work"
            raise StateError(f"marker {marker.value} is not in {marker.file} of {new}, and no other can be", hint=hint)
        rows.append(msgspec.structs.replace(found[0], versions=since(new, later), discriminates=marker.discriminates))
        notes.append(f"marker {marker.value} is not in {marker.file} of {new}: {found[0].value} takes its place")
    return rows, notes


def _held(patch: Patch, spec: PatchFile, onto: Tree, engine: Engine, wanted: Mapping[str, bytes | None]) -> PatchFile:
    """*spec*, if it is pending on the new release and makes *wanted* of it, where that is known."""
    planned = plan(onto, [replace(patch, spec=spec)], engine)
    refusal = planned.refusal()
    if refusal:
        raise StateError(f"the proposal does not hold on {engine.version}: {refusal.message}", hint=refusal.hint)
    if wanted and {change.path: change.new for change in planned.changes} != wanted:
        raise StateError(f"the proposal makes other bytes of {engine.version} than the merge", hint="cut it by hand")
    return spec


def _ids(edits: Sequence[Edit]) -> list[str]:
    return list(dict.fromkeys(edit.id for edit in edits))
