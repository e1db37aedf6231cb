"""One patch in one tree: its state, the evidence for it, and the tree with the patch in or out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from packaging.version import Version

from graftwork.catalog.catalog import Earlier, Patch
from graftwork.catalog.patches import Anchor, Codemod, Diff, Edit, Fact, Marker, NewFile
from graftwork.catalog.rules import edit_files
from graftwork.catalog.versions import matches
from graftwork.patching import edits, markers, memo
from graftwork.patching.hunks import Hunk, HunkState
from graftwork.patching.overlay import Overlay
from graftwork.patching.states import State, decide


@dataclass(frozen=True)
class Engine:
    """What the tree is: the engine's version, and the platform it will run on."""

    version: Version
    platform: str


@dataclass(frozen=True)
class Assessment:
    """The state of a patch in a tree; ``after`` is the tree with a pending patch in it.

    ``problems`` are failures of the patch's own proof (exit 4).
    """

    patch: Patch
    state: State
    hunks: tuple[Hunk, ...] = ()
    markers: tuple[tuple[Marker, bool], ...] = ()
    reasons: tuple[str, ...] = ()
    found: Earlier | None = None
    upgradable: bool = False
    after: Overlay | None = field(default=None, repr=False, compare=False)
    problems: tuple[str, ...] = ()


def edits_for(patch: Patch, engine: Engine) -> list[Edit]:
    """The variant of each edit that is meant for the engine's version."""
    return [edit for edit in patch.spec.edit if matches(edit.versions, engine.version)]


def planned_files(patch: Patch, engine: Engine) -> set[str]:
    """Every path that planning *patch* reads or writes: of edits, markers, earlier revisions and `obsolete_when`."""
    found = {marker.file for marker in patch.spec.marker}
    for when in patch.spec.obsolete_when:
        found |= {fact.file for fact in (when, *when.also)}
    for edit in (*edits_for(patch, engine), *(edit for old in patch.earlier for edit in old.edits)):
        found |= edit_files(edit, patch.folder) if isinstance(edit, (Diff, NewFile)) else {edit.file}
    return found


def assess(patch: Patch, over: Overlay, engine: Engine) -> Assessment:
    """The state of *patch* in *over*, which is not changed."""
    for rule in patch.spec.not_needed:
        if matches(rule.versions, engine.version) and (not rule.platforms or engine.platform in rule.platforms):
            return Assessment(patch, State.NOT_NEEDED, reasons=(rule.reason,))
    if patch.spec.platforms and engine.platform not in patch.spec.platforms:
        reason = f"it is for {', '.join(patch.spec.platforms)}, the target is {engine.platform}"
        return Assessment(patch, State.NOT_NEEDED, reasons=(reason,))
    for when in patch.spec.obsolete_when:
        facts = (when, *when.also)
        if all(_holds(fact, over) for fact in facts):
            said = "; ".join(map(_said, facts))
            return Assessment(patch, State.OBSOLETE, reasons=(f"{when.reason} ({said})",))
    return _by_text(patch, over, engine)


def _by_text(patch: Patch, over: Overlay, engine: Engine) -> Assessment:
    chosen = edits_for(patch, engine)
    hunks, after = _examine(chosen, patch, over)
    marked = _marked(markers.in_force(patch.spec.marker, engine.version), over)
    state, reasons = decide(hunks, [there for _, there in marked])
    found, upgradable = None, False
    if state is not State.APPLIED:
        found, upgradable = _earlier(patch, over, marked)
    if found:
        state, reasons = State.OUTDATED, [f"revision {found.id} is in the tree, this is {patch.spec.revision}"]
        reasons += [found.note] if found.note else []
        if not upgradable:
            reasons.append("its text is not the one we know, only its markers are: restore the pristine file first")
    elif not chosen:
        state, reasons = State.DRIFTED, [f"no edit of this patch is written for {engine.version}"]
    if not matches(patch.spec.versions, engine.version) and state in (State.PENDING, State.DRIFTED):
        state = State.DRIFTED
        reasons = [f"written and tested for {patch.spec.versions}, this is {engine.version}", *reasons]
    pending = after if state is State.PENDING else None
    return Assessment(patch, state, tuple(hunks), tuple(marked), tuple(reasons), found, upgradable, pending)


def put(item: Assessment, over: Overlay, engine: Engine) -> list[str]:
    """Apply a pending patch to *over*, and prove it there: every hunk done, every marker compiled in.

    Returns the failures of that proof; none is the only good answer.
    """
    patch, chosen = item.patch, edits_for(item.patch, engine)
    assert item.after is not None, "only a pending patch can be put"
    over.changed.update(item.after.changed)
    bad = [
        f"{hunk.name}: {hunk.state.value} after it was applied"
        for hunk in _examine(chosen, patch, over)[0]
        if hunk.state not in (HunkState.DONE, HunkState.HOLDS)
    ]
    for marker, there in _marked(markers.in_force(patch.spec.marker, engine.version), over):
        if not there:
            bad.append(
                f"marker {marker.kind} {marker.value!r} is not in {marker.function} of the patched {marker.file}"
            )
    return bad


def take_out(chosen: Sequence[Edit], patch: Patch, over: Overlay) -> None:
    """Remove edits that are all done from *over*, last first."""
    for edit in reversed(chosen):
        edits.backward(edit, patch.folder, over)


def _examine(chosen: Sequence[Edit], patch: Patch, over: Overlay) -> tuple[list[Hunk], Overlay]:
    """Examine each edit on the tree that the edits before it leave behind; returns that tree too."""
    hunks: list[Hunk] = []
    after = over.copy()
    for plain, group in groupby(chosen, lambda edit: isinstance(edit, (Codemod, Anchor))):
        run = list(group)
        found = _remembered(run, patch, after) if plain else _examined(run, patch, after)
        hunks += found.hunks
        after.changed.update(found.changed)
    return hunks, after


def _remembered(run: Sequence[Edit], patch: Patch, over: Overlay) -> _Examined:
    """Edits that read and write only the files that they name; other kinds read more, and parse nothing."""
    files = dict.fromkeys(edit.file for edit in run if isinstance(edit, (Codemod, Anchor)))
    texts = [over.bytes_of(file) for file in files]
    return memo.recalled(list(run), texts, _Examined, lambda: _examined(run, patch, over))


@dataclass(frozen=True)
class _Examined:
    """Hunks in the order of their edits, and the files that are different with every pending edit in them."""

    hunks: list[Hunk]
    changed: dict[str, bytes | None]


def _examined(chosen: Sequence[Edit], patch: Patch, over: Overlay) -> _Examined:
    hunks: list[Hunk] = []
    after = over.copy()
    for edit in chosen:
        found = edits.examine(edit, patch.folder, after)
        hunks += found
        if all(hunk.state in (HunkState.PENDING, HunkState.HOLDS) for hunk in found):
            edits.forward(edit, patch.folder, after)
    changed = {path: data for path, data in after.changed.items() if over.changed.get(path, _NOTHING) is not data}
    return _Examined(hunks, changed)


_NOTHING = object()


def _earlier(patch: Patch, over: Overlay, marked: Sequence[tuple[Marker, bool]]) -> tuple[Earlier | None, bool]:
    """The earlier revision whose markers the tree has while this revision's discriminating ones are absent."""
    for old in patch.earlier:
        newer = [there for marker, there in marked if old.id in marker.discriminates]
        if any(newer) or not all(there for _, there in _marked(old.markers, over)):
            continue
        hunks, _ = _examine(old.edits, patch, over)
        return old, all(hunk.state in (HunkState.DONE, HunkState.HOLDS) for hunk in hunks)
    return None, False


def _marked(wanted: Sequence[Marker], over: Overlay) -> list[tuple[Marker, bool]]:
    """Each marker, and whether the compiled file has it."""
    texts = [over.bytes_of(file) for file in dict.fromkeys(marker.file for marker in wanted)]
    found = memo.recalled(list(wanted), texts, list[bool], lambda: [markers.present(m, over) for m in wanted])
    return list(zip(wanted, found, strict=True))


def _holds(fact: Fact, over: Overlay) -> bool:
    text = over.text_of(fact.file)
    return text is not None and memo.recalled(fact, [text.encode()], bool, lambda: _found(fact, text))


def _found(fact: Fact, text: str) -> bool:
    from graftwork.patching import regions

    holds = not fact.defines or regions.defined(regions.parsed(text, fact.file), fact.defines)
    if holds and fact.contains:
        from graftwork.patching import codemod

        holds = codemod.contains(text, fact.file, fact.scope, fact.contains)
    return holds


def _said(fact: Fact) -> str:
    return f"{fact.file} defines {fact.defines}" if fact.defines else f"{fact.file} contains {fact.contains}"
