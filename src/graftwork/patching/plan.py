"""Planning: all patches of a target on one tree, as pure data. Nothing is written, all failures are reported."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from graftwork.catalog.catalog import Patch
from graftwork.errors import GraftworkError, ObsoleteError, ProofError, StateError
from graftwork.patching.assess import Assessment, Engine, assess, edits_for, put, take_out
from graftwork.patching.overlay import Overlay
from graftwork.patching.states import MEANING, State
from graftwork.trees.tree import Tree

_REFUSED = (State.OUTDATED, State.PARTIAL, State.DRIFTED)
_SETTLED = (State.PENDING, State.NOT_NEEDED, State.OBSOLETE)


@dataclass(frozen=True)
class FileChange:
    """One file: its bytes in the tree (None: new), to be, and without any patch; and the patches that touch it."""

    path: str
    old: bytes | None
    new: bytes | None
    pristine: bytes | None
    patches: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """The state of every patch and the files to write. ``patched`` are all files that a patch is in."""

    engine: Engine
    origin: str
    patches: tuple[Assessment, ...]
    changes: tuple[FileChange, ...]
    patched: tuple[FileChange, ...]
    optional: frozenset[str]

    @property
    def pending(self) -> list[Assessment]:
        return [item for item in self.patches if item.state is State.PENDING]

    def refusal(self) -> GraftworkError | None:
        """The error that this plan is, or None if it can be written. A failed proof outranks drift, drift obsolete."""
        failed = [item for item in self.patches if item.problems]
        refused = [item for item in self.patches if item.state in _REFUSED]
        gone = [item for item in self.patches if item.state is State.OBSOLETE and item.patch.id not in self.optional]
        if failed:
            names = ", ".join(item.patch.id for item in failed)
            return ProofError(f"proof failed for {names}; nothing was written", hint="the patch itself is at fault")
        if refused:
            text = "; ".join(f"{item.patch.id} is {item.state.value} ({MEANING[item.state]})" for item in refused)
            return StateError(f"{text}; nothing was written", hint=_hint(refused))
        if gone:
            names = ", ".join(item.patch.id for item in gone)
            return ObsoleteError(
                f"{names}: the defect is fixed upstream in {self.engine.version}; nothing was written",
                hint="drop it from the target's patches, or list it under optional",
            )
        return None


def plan(tree: Tree, patches: Sequence[Patch], engine: Engine, optional: Collection[str] = ()) -> Plan:
    """Plan *patches*, in order, on *tree*."""
    over, pristine = Overlay(tree), Overlay(tree)
    results = _in_order(patches, over, engine)
    # A lone patch was seen on the tree as it is: what is not applied there cannot be taken out.
    lone = len(results) == 1 and results[0].state is not State.APPLIED
    if not lone and not all(item.state in _SETTLED for item in results):
        fresh = Overlay(tree)
        peeled = _peel(patches, fresh, engine)
        if peeled:
            pristine = fresh.copy()
            over, results = fresh, _in_order(patches, fresh, engine, peeled)
    results = [_with_conflict(item, patches, tree, engine) for item in results]
    owners = _owners(results, engine)
    changed = over.differing()
    files = [
        FileChange(path, over.original(path), over.bytes_of(path), pristine.bytes_of(path), owners.get(path, ()))
        for path in sorted({*changed, *owners})
    ]
    changes = tuple(file for file in files if file.path in changed)
    patched = tuple(file for file in files if file.patches)
    return Plan(engine, tree.origin, tuple(results), changes, patched, frozenset(optional))


def _in_order(
    patches: Sequence[Patch], over: Overlay, engine: Engine, peeled: dict[str, Assessment] | None = None
) -> list[Assessment]:
    """Assess each patch on what the ones before it leave behind; *peeled* ones are put back as they were."""
    results = []
    for patch in patches:
        if peeled and patch.id in peeled:
            before = {path: over.bytes_of(path) for path in over.changed}
            problems = put(assess(patch, over, engine), over, engine)
            results.append(replace(peeled[patch.id], problems=tuple(problems)))
            _keep_layout(over, before)
            continue
        item = assess(patch, over, engine)
        if item.state is State.PENDING:
            item = replace(item, problems=tuple(put(item, over, engine)))
        results.append(item)
    return results


def _keep_layout(over: Overlay, before: dict[str, bytes | None]) -> None:
    """Where a patch that was in the tree is put back, the tree's own bytes win if only layout differs."""
    from graftwork.patching.codemod import same_syntax

    for path in before:
        there, now = over.original(path), over.bytes_of(path)
        if there is not None and now is not None and there != now and same_syntax(there, now):
            over.put(path, there)


def _peel(patches: Sequence[Patch], over: Overlay, engine: Engine) -> dict[str, Assessment]:
    """Take applied patches out, last first, so that one which edits another's result is seen through."""
    peeled = {}
    for patch in reversed(patches):
        item = assess(patch, over, engine)
        if item.state is State.APPLIED:
            take_out(edits_for(patch, engine), patch, over)
            peeled[patch.id] = item
    return peeled


def _with_conflict(item: Assessment, patches: Sequence[Patch], tree: Tree, engine: Engine) -> Assessment:
    """Name the patch in the way where *item* would fit the tree as it is but not behind the ones before it."""
    before = patches[: [patch.id for patch in patches].index(item.patch.id)]
    if not before or item.state not in (State.DRIFTED, State.PARTIAL):
        return item
    if assess(item.patch, Overlay(tree), engine).state not in (State.PENDING, State.APPLIED):
        return item
    for other in before:
        over = Overlay(tree)
        first = assess(other, over, engine)
        if first.state is not State.PENDING:
            continue
        put(first, over, engine)
        if assess(item.patch, over, engine).state is not State.PENDING:
            reason = f"conflict: {item.patch.id} and {other.id} edit the same place; {other.id} comes first"
            return replace(item, reasons=(reason, *item.reasons))
    return item


def _owners(results: Sequence[Assessment], engine: Engine) -> dict[str, tuple[str, ...]]:
    """Path -> ids of the patches that are, or will be, in it."""
    owners: dict[str, tuple[str, ...]] = {}
    for item in results:
        if item.state in (State.PENDING, State.APPLIED):
            for path in dict.fromkeys(hunk.file for hunk in item.hunks if hunk.state.value != "holds"):
                owners[path] = (*owners.get(path, ()), item.patch.id)
    return owners


def _hint(refused: Sequence[Assessment]) -> str:
    if any(item.state is State.OUTDATED and item.upgradable for item in refused):
        return "run apply with --upgrade to take the earlier revision out and this one in"
    if any(item.state is State.OUTDATED for item in refused):
        return "restore the pristine files, then apply"
    if any(item.state is State.PARTIAL for item in refused):
        return "restore the pristine files (graftwork revert, or reinstall the engine), then apply"
    return "compare each anchor with the nearest candidate above, then cut the patch again for this release"
