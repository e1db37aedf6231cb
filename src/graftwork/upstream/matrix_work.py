"""One release of the matrix: every patch planned alone on the pristine files of that release."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from packaging.version import Version

from graftwork.catalog.catalog import Patch
from graftwork.catalog.patches import NewFile
from graftwork.catalog.rules import edit_files
from graftwork.errors import MissingFile, TreeError
from graftwork.names import RelPath
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


class Unreadable(Exception):
    """The release itself is damaged, which says nothing about a patch; ``error`` is what its tree said."""

    def __init__(self, error: TreeError) -> None:
        super().__init__(error.message)
        self.error = error


class Source:
    """A release's tree whose own failures are told apart from source text that cannot be planned on."""

    def __init__(self, tree: Tree) -> None:
        self.origin = tree.origin
        self._tree = tree

    def read(self, path: RelPath) -> bytes:
        with _telling():
            return self._tree.read(path)

    def exists(self, path: RelPath) -> bool:
        with _telling():
            return self._tree.exists(path)

    def paths(self) -> Iterable[RelPath]:
        with _telling():
            return list(self._tree.paths())


@contextmanager
def _telling() -> Iterator[None]:
    try:
        yield
    except MissingFile:
        raise
    except TreeError as error:
        raise Unreadable(error) from error


def plan_alone(tree: Tree, patch: Patch, version: Version, platform: str) -> Planned:
    """Plan *patch* alone on *tree*. A file that is no UTF-8 or no Python makes it drifted, with the reason."""
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
