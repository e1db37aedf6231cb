"""Apply, upgrade and revert a plan in a folder, with the record that makes the way back exact."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from graftwork.catalog.catalog import Patch
from graftwork.errors import PinError, StateError, UsageError
from graftwork.patching.assess import Engine, assess, edits_for, take_out
from graftwork.patching.overlay import Overlay
from graftwork.patching.plan import Plan, plan
from graftwork.patching.states import State
from graftwork.patching.transaction import Store, Write
from graftwork.trees.folder import FolderTree

RecordOf = Callable[[Plan], dict[str, Any]]
Pristine = Callable[[str], "bytes | None"]


def apply(
    tree: FolderTree,
    target: str,
    patches: Sequence[Patch],
    engine: Engine,
    record_of: RecordOf,
    *,
    optional: Sequence[str] = (),
    upgrade: bool = False,
) -> Plan:
    """Plan on *tree* and write the plan, or raise what the plan refuses. Returns the plan that was carried out.

    With *upgrade*, an earlier revision of a patch is first taken out: by the kept pristine bytes where the
    tree has them, else by that revision's own edits, last first.
    """
    store = Store(tree)
    if not store.interrupted:  # a plan on half-written files says nothing
        planned, below = _plan(tree, store, patches, engine, optional, upgrade)
        if planned.refusal() or not _differs(planned, below, tree):
            return planned
    with store.locked():
        planned, below = _plan(tree, store, patches, engine, optional, upgrade)
        if planned.refusal() is None and _differs(planned, below, tree):
            _other_target(store, target)
            keep = [change.pristine for change in planned.patched]
            store.commit(_writes(planned, below, tree), _applied(store, target, planned, record_of), keep)
    return planned


def revert(tree: FolderTree, target: str, patches: Sequence[Patch], engine: Engine, pristine: Pristine) -> list[str]:
    """Restore the pristine bytes of every file that the target's patches are in; returns their paths.

    With the record of an apply, from the kept bytes. Without one, by taking the edits out, and only if the
    result is the pinned wheel's file (*pristine* reads it).
    """
    store = Store(tree)
    if store.record() is None and not store.interrupted:
        writes = _undone(tree, patches, engine, pristine)
        if not writes:
            return []
    with store.locked():
        record = store.record()
        if record is None:
            writes = _undone(tree, patches, engine, pristine)
        else:
            if record["target"] != target:
                raise UsageError(f"the tree carries target {record['target']}", hint=f"revert {record['target']}")
            writes = [_back(tree, store, row) for row in record["files"]]
        store.commit([write for write in writes if write.old != write.new], None)
    return [write.path for write in writes]


def _plan(
    tree: FolderTree, store: Store, patches: Sequence[Patch], engine: Engine, optional: Sequence[str], upgrade: bool
) -> tuple[Plan, Overlay]:
    below = Overlay(tree)
    if upgrade and not _restored(tree, store, below, patches, engine):
        for patch in reversed(patches):
            item = assess(patch, below, engine)
            if item.state is State.APPLIED:
                take_out(edits_for(patch, engine), patch, below)
            elif item.found and item.upgradable:
                take_out(item.found.edits, patch, below)
    return plan(below if below.changed else tree, patches, engine, optional), below


def _restored(tree: FolderTree, store: Store, below: Overlay, patches: Sequence[Patch], engine: Engine) -> bool:
    """Put the kept pristine bytes under the overlay, if a patch is outdated and the tree is what the record says."""
    record = store.record()
    rows = record["files"] if record else []
    if not any(assess(patch, below, engine).found for patch in patches):
        return True
    if not rows or any(_sha(below.original(row["path"])) != row["patched"] for row in rows):
        return False
    for row in rows:
        below.put(row["path"], store.blob(row["pristine"]) if row["pristine"] else None)
    return True


def _differs(planned: Plan, below: Overlay, tree: FolderTree) -> bool:
    return any(write.old != write.new for write in _writes(planned, below, tree))


def _writes(planned: Plan, below: Overlay, tree: FolderTree) -> list[Write]:
    """Disk bytes now and bytes to be, of every file that the plan or the upgrade changes."""
    disk = Overlay(tree)
    to_be = {**below.changed, **{change.path: change.new for change in planned.changes}}
    writes = [Write(path, disk.original(path), data) for path, data in sorted(to_be.items())]
    return [write for write in writes if write.old != write.new]


def _applied(store: Store, target: str, planned: Plan, record_of: RecordOf) -> dict[str, Any]:
    """The record to keep: pristine and patched hash of each file; known pristine hashes are carried over."""
    old = store.record() or {"files": []}
    known = {(row["path"], row["patched"]): row["pristine"] for row in old["files"]}
    rows = [
        {
            "path": change.path,
            "pristine": known.get((change.path, _sha(change.old)), _sha(change.pristine)),
            "patched": _sha(change.new),
        }
        for change in planned.patched
    ]
    return {"schema": 1, "target": target, "files": rows, "record": record_of(planned)}


def _other_target(store: Store, target: str) -> None:
    record = store.record()
    if (
        record
        and record["target"] != target
        and any(_sha(Overlay(store.tree).original(row["path"])) == row["patched"] for row in record["files"])
    ):
        raise UsageError(
            f"the tree carries target {record['target']}, not {target}",
            hint=f"first run: graftwork revert {record['target']} --tree {store.tree.root}",
        )


def _back(tree: FolderTree, store: Store, row: dict[str, Any]) -> Write:
    there = Overlay(tree).original(row["path"])
    if _sha(there) not in (row["patched"], row["pristine"]):
        raise StateError(
            f"{row['path']}: changed since it was patched (sha256 {(_sha(there) or 'no file')[:12]}, "
            f"patched {str(row['patched'])[:12]}); nothing was written",
            hint="put the patched file back, or reinstall the engine",
        )
    return Write(row["path"], there, store.blob(row["pristine"]) if row["pristine"] else None)


def _undone(tree: FolderTree, patches: Sequence[Patch], engine: Engine, pristine: Pristine) -> list[Write]:
    over = Overlay(tree)
    for patch in reversed(patches):
        item = assess(patch, over, engine)
        if item.state is State.APPLIED:
            take_out(edits_for(patch, engine), patch, over)
        elif item.state in (State.PARTIAL, State.OUTDATED):
            reasons = "; ".join(item.reasons)
            raise StateError(
                f"{patch.id} is {item.state.value}: {reasons}; nothing was written", hint="reinstall the engine"
            )
    writes = [Write(path, old, new) for path, (old, new) in over.differing().items()]
    for write in writes:
        want = pristine(write.path)
        if want != write.new:
            raise PinError(
                f"{write.path}: without the patch it is {(_sha(write.new) or 'no file')[:12]}, "
                f"the pinned wheel's is {(_sha(want) or 'no file')[:12]}; nothing was written",
                hint="reinstall the engine",
            )
    return writes


def _sha(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()
