"""The variants of one patch in one tree: all in, out, each hunk out, earlier revisions, fakes and mutants. Pure data.

Nothing is executed here. The other patches of the target stay in while one is varied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import msgspec

from graftwork.catalog.catalog import Earlier, Patch
from graftwork.catalog.patches import Anchor, AnchorHunk, Codemod, CodemodHunk, Edit, Mutant
from graftwork.catalog.rules import edit_files
from graftwork.catalog.versions import matches
from graftwork.errors import TreeError
from graftwork.harness import dead_code
from graftwork.patching import edits, markers
from graftwork.patching.assess import assess, edits_for, put
from graftwork.patching.hunks import Hunk, HunkState
from graftwork.patching.overlay import Overlay
from graftwork.patching.plan import Plan
from graftwork.patching.states import State
from graftwork.trees.tree import Tree

Sort = Literal["in", "out", "hunk", "earlier", "markers", "mutant"]
_READY = (HunkState.PENDING, HunkState.HOLDS)


class NoFit(Exception):
    """A variant that cannot be built: the rest of the patches does not fit without what was left out."""


@dataclass(frozen=True)
class Variant:
    """One variant and its ``files`` (path -> bytes) as the tests will find them.

    ``refusal``: why it could not be built, then there are no files. ``uncompiled``: the compiler's error. ``marked``:
    how many of the patch's markers are in its compiled code, of ``markers``.
    """

    sort: Sort
    name: str
    why: str = ""
    inert: str = ""
    refusal: str = ""
    uncompiled: str = ""
    marked: int = 0
    markers: int = 0
    state: State | None = None
    files: dict[str, bytes] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Stage:
    """One patch of a plan that is written nowhere, with the patches around it, on the tree that was planned."""

    plan: Plan
    tree: Tree
    patch: Patch
    mutants: Sequence[Mutant]
    _known: dict[tuple[str, int | None, str], str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def variants(self) -> Iterator[Variant]:
        """Every variant of the patch for this tree, in the order of the report."""
        chosen = edits_for(self.patch, self.plan.engine)
        yield self._built("in", "all in", self._planned)
        yield self._built("out", "patch out", lambda: self._composed(lambda over: None, alone=True))
        for hunk in self._hunks():
            edit = next(each for each in chosen if each.id == hunk.edit)
            why, inert = _said(edit, hunk.index)
            yield self._built("hunk", hunk.name, partial(self._without, hunk, chosen), why=why, inert=inert)
        for old in self.patch.earlier:
            if any(matches(edit.versions, self.plan.engine.version) for edit in old.edits):
                yield self._built("earlier", old.id, partial(self._earlier, old), why=old.note)
        yield self._built("markers", "markers, stock logic", lambda: self._composed(self._plant, alone=True))
        for mutant in self.mutants:
            if matches(mutant.versions, self.plan.engine.version):
                yield self._built("mutant", mutant.id, partial(self._spoiled, mutant), why=mutant.why)

    def _hunks(self) -> list[Hunk]:
        (item,) = (item for item in self.plan.patches if item.patch.id == self.patch.id)
        return [hunk for hunk in item.hunks if hunk.state is not HunkState.HOLDS]

    def _planned(self) -> Overlay:
        return Overlay(self.tree, {change.path: change.new for change in self.plan.changes})

    def _without(self, hunk: Hunk, chosen: Sequence[Edit]) -> Overlay:
        def apply(over: Overlay) -> None:
            for edit in chosen:
                self._forward(edit, over, hunk.index if hunk.edit == edit.id else None)

        return self._composed(apply)

    def _earlier(self, old: Earlier) -> Overlay:
        def apply(over: Overlay) -> None:
            for edit in old.edits:
                if matches(edit.versions, self.plan.engine.version):
                    _fits(edit, self.patch, over)
                    edits.forward(edit, self.patch.folder, over)

        return self._composed(apply)

    def _plant(self, over: Overlay) -> None:
        try:
            dead_code.plant(markers.in_force(self.patch.spec.marker, self.plan.engine.version), over)
        except (ValueError, SyntaxError) as error:
            raise NoFit(str(error)) from None

    def _spoiled(self, mutant: Mutant) -> Overlay:
        """The mutant's edits on the tree with all patches in; that they fit is the author's promise."""
        over = self._planned()
        before = dict(over.changed)
        for edit in mutant.edit:
            if matches(edit.versions, self.plan.engine.version):
                _fits(_anchors_of(edit), self.patch, over)
                edits.forward(edit, self.patch.folder, over)
        if over.changed == before:
            raise NoFit("the mutant changes nothing here")
        return over

    def _built(self, sort: Sort, name: str, build: Callable[[], Overlay], *, why: str = "", inert: str = "") -> Variant:
        about = Variant(sort, name, " ".join(why.split()), inert)
        try:
            over = build()
        except NoFit as error:
            return replace(about, refusal=str(error))
        wanted = markers.in_force(self.patch.spec.marker, self.plan.engine.version)
        try:
            for path in {path for files in self._near().values() for path in files if path.endswith(".py")}:
                if (text := over.text_of(path)) is not None:
                    markers.compiled(text, path)
            marked = sum(markers.present(marker, over) for marker in wanted)
        except TreeError as error:
            return replace(about, uncompiled=str(error))
        state = assess(self.patch, over, self.plan.engine).state if sort == "earlier" else None
        return replace(about, marked=marked, markers=len(wanted), state=state, files=self._files(over))

    def _composed(self, apply: Callable[[Overlay], None], alone: bool = False) -> Overlay:
        """The tree with every other patch in, in the target's order, and *apply* in the place of this one.

        With *alone*, patches that say ``after`` this one are left out where they do not fit.
        """
        near = self._near()
        over = self._planned()
        for path in [path for path in over.changed if any(path in files for files in near.values())]:
            del over.changed[path]
        for item in self.plan.pending:
            if item.patch.id == self.patch.id:
                apply(over)
            elif item.patch.id in near:
                other = assess(item.patch, over, self.plan.engine)
                fits = other.state is State.PENDING
                problems = put(other, over, self.plan.engine) if fits else other.reasons
                if problems and (fits or not (alone and self.patch.id in item.patch.spec.after)):
                    raise NoFit(f"{item.patch.id} is {other.state.value} then: {'; '.join(problems)}")
        return over

    def _forward(self, edit: Edit, over: Overlay, without: int | None) -> None:
        """Apply *edit*, except the hunk *without*. What came of it before on the same text is kept."""
        if not isinstance(edit, (Codemod, Anchor)):
            _fits(edit, self.patch, over, without)
            edits.forward(edit, self.patch.folder, over, without=without)
            return
        key = (edit.id, without, over.text_of(edit.file) or "")
        if key not in self._known:
            _fits(edit, self.patch, over, without)
            edits.forward(edit, self.patch.folder, over, without=without)
            self._known[key] = over.text_of(edit.file) or ""
        over.put(edit.file, self._known[key].encode("utf-8"))

    def _near(self) -> dict[str, set[str]]:
        """This patch and those it meets in a file, directly or through others: id -> files of its edits."""
        files = {item.patch.id: _touched(item.patch) for item in self.plan.pending}
        near = {self.patch.id}
        while more := {name for name in files if name not in near and any(files[name] & files[n] for n in near)}:
            near |= more
        return {name: files[name] for name in near}

    def _files(self, over: Overlay) -> dict[str, bytes]:
        """What the tests may read: the files of the edits, those under ``reads``, and the version."""
        engine = self.patch.engine
        wanted = {*_touched(self.patch), *self.patch.spec.reads, f"{engine}/_version.py", f"{engine}/version.py"}
        found = {path: over.bytes_of(path) for path in sorted(wanted)}
        return {path: data for path, data in found.items() if data is not None}


def _touched(patch: Patch) -> set[str]:
    return set().union(*(edit_files(edit, patch.folder) for edit in patch.spec.edit))


def _said(edit: Edit, index: int) -> tuple[str, str]:
    """(why, inert) of a hunk; of the whole edit where its hunks have none."""
    if isinstance(edit, (Codemod, Anchor)):
        hunk = edit.hunk[index]
        return hunk.why or edit.why, hunk.inert
    return edit.why, edit.inert


def _fits(edit: Edit, patch: Patch, over: Overlay, without: int | None = None) -> None:
    """NoFit unless every hunk of *edit* but *without* matches exactly once."""
    for hunk in edits.examine(edit, patch.folder, over):
        if hunk.index != without and hunk.state not in _READY:
            raise NoFit(f"{hunk.name} is {hunk.state.value} then: {' '.join((hunk.detail or hunk.anchor).split())}")


def _anchors_of(edit: Edit) -> Edit:
    """*edit* with results that occur nowhere, so that only its anchors are counted: a mutant may repeat other code."""
    if isinstance(edit, Codemod):
        hunks = [CodemodHunk(match=hunk.match, becomes="_no_such_name_") for hunk in edit.hunk]
        return msgspec.structs.replace(edit, hunk=hunks)
    if isinstance(edit, Anchor):
        return msgspec.structs.replace(edit, hunk=[AnchorHunk(find=hunk.find, replace="") for hunk in edit.hunk])
    return edit
