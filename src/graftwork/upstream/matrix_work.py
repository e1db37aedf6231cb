"""One release of the matrix: every patch planned alone on the pristine files of that release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from packaging.version import Version

from graftwork.catalog.catalog import Patch
from graftwork.catalog.patches import NewFile
from graftwork.catalog.rules import edit_files
from graftwork.errors import TreeError
from graftwork.patching.assess import Assessment, Engine, edits_for
from graftwork.patching.hunks import HunkState
from graftwork.patching.plan import plan
from graftwork.patching.states import State
from graftwork.trees.tree import Tree
from graftwork.upstream.matrix_cells import EditCell, HunkCell


@dataclass(frozen=True)
class Planned:
    """A patch in a release before it becomes a cell."""

    state: State
    edits: list[EditCell]
    reasons: list[str]


def plan_alone(tree: Tree, patch: Patch, version: Version, platform: str) -> Planned:
    """Plan *patch* alone on *tree*. A file that cannot be read as the engine's source makes it drifted."""
    engine = Engine(version, platform)
    try:
        made = plan(tree, [patch], engine)
    except TreeError as error:
        return Planned(State.DRIFTED, [], [f"it cannot be planned here: {error.message}"])
    (item,) = made.patches
    return Planned(item.state, _edits(item, engine), [*item.reasons, *item.problems])


def edited_files(patch: Patch, version: Version) -> set[str]:
    """The files in which the edits meant for *version* look for anchors."""
    chosen = edits_for(patch, Engine(version, ""))
    return set().union(*(edit_files(edit, patch.folder) for edit in chosen if not isinstance(edit, NewFile)))


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
        return str(HunkState.HOLDS.value)
    for good in (HunkState.PENDING, HunkState.DONE):
        if all(state is good for state in counting):
            return str(good.value)
    in_the_way = [state for state in counting if state not in (HunkState.PENDING, HunkState.DONE)]
    return str(in_the_way[0].value) if in_the_way else "partial"
