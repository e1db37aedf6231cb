"""One release of the matrix: every patch planned alone on the pristine files of that release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from graftwork.catalog.catalog import Patch
from graftwork.catalog.patches import Anchor, Codemod, Diff, Edit
from graftwork.errors import MissingFile, TreeError
from graftwork.names import Sha256, rel_path
from graftwork.patching import diffs
from graftwork.patching.assess import Assessment, Engine, edits_for
from graftwork.patching.hunks import HunkState
from graftwork.patching.overlay import Overlay
from graftwork.patching.plan import FileChange, plan
from graftwork.patching.states import State
from graftwork.trees.tree import Tree
from graftwork.upstream.matrix_cells import EditCell, HunkCell

Platforms = dict[str, str]


@dataclass(frozen=True)
class Planned:
    """A patch in a release before it becomes a cell."""

    state: State
    edits: list[EditCell]
    reasons: list[str]
    changes: tuple[FileChange, ...] = ()


def plan_alone(tree: Tree, patch: Patch, version: Version, platform: str) -> Planned:
    """Plan *patch* alone on *tree*. A file that cannot be read as the engine's source makes it drifted."""
    engine = Engine(version, platform)
    try:
        made = plan(tree, [patch], engine)
    except TreeError as error:
        return Planned(State.DRIFTED, [], [f"it cannot be planned here: {error.message}"])
    (item,) = made.patches
    return Planned(item.state, _edits(item, engine), [*item.reasons, *item.problems], made.changes)


def shared(tree: Tree) -> Tree:
    """*tree* with each file read once, for many patches."""
    return Overlay(tree)


def files_of(patch: Patch, version: Version) -> list[str]:
    """The files that the edits meant for *version* look at."""
    found: list[str] = []
    for edit in edits_for(patch, Engine(version, "")):
        found += edit_files(edit, patch.folder)
    return list(dict.fromkeys(found))


def edit_files(edit: Edit, folder: Path) -> list[str]:
    """The existing files that one edit looks at."""
    if isinstance(edit, (Codemod, Anchor)):
        return [edit.file]
    return diffs.files(edit, folder) if isinstance(edit, Diff) else []


def hashes(tree: Tree, patches: Sequence[Patch], version: Version) -> dict[str, Sha256 | None]:
    """sha256 of each file that the patches' edits look at; None where the release lacks it."""
    import hashlib

    found: dict[str, Sha256 | None] = {}
    for patch in patches:
        for path in files_of(patch, version):
            try:
                found[path] = Sha256(hashlib.sha256(tree.read(rel_path(path))).hexdigest())
            except MissingFile:
                found[path] = None
    return found


def _edits(item: Assessment, engine: Engine) -> list[EditCell]:
    by_edit: dict[str, list[HunkCell]] = {}
    states: dict[str, list[HunkState]] = {}
    for hunk in item.hunks:
        cell = HunkCell(name=hunk.name, file=hunk.file, state=hunk.state.value, anchor=hunk.anchor, detail=hunk.detail)
        by_edit.setdefault(hunk.edit, []).append(cell)
        states.setdefault(hunk.edit, []).append(hunk.state)
    return [EditCell(id=name, state=_together(states[name]), hunks=cells) for name, cells in by_edit.items()]


def _together(states: Sequence[HunkState]) -> str:
    """One word for an edit: what all its hunks are, else the first that is in the way."""
    counting = [state for state in states if state is not HunkState.HOLDS]
    if not counting:
        return HunkState.HOLDS.value
    for good in (HunkState.PENDING, HunkState.DONE):
        if all(state is good for state in counting):
            return good.value
    in_the_way = [state for state in counting if state not in (HunkState.PENDING, HunkState.DONE)]
    return str(in_the_way[0].value) if in_the_way else "partial"
