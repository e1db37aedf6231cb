"""A new revision of a patch, from a tree that was edited by hand."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

import msgspec

from graftwork.catalog import versions
from graftwork.catalog.catalog import Patch
from graftwork.catalog.patches import Anchor, Codemod, Edit, Marker, NewFile, Revision, RevisionFile
from graftwork.catalog.toml import table_of, toml_text
from graftwork.errors import StateError, UsageError
from graftwork.harness import suggest
from graftwork.harness.refresh import Refreshed, texts
from graftwork.names import RelPath
from graftwork.patching import edits as editing
from graftwork.patching import markers as marking
from graftwork.patching.assess import Engine, assess, edits_for, put
from graftwork.patching.overlay import Overlay
from graftwork.patching.states import State
from graftwork.trees.folder import FolderTree
from graftwork.upstream import partial
from graftwork.upstream.cut_codemod import cut_best

_LEAVINGS = (".pyc", ".so", ".orig", ".rej", "~")


def base_of(patch: Patch, others: Sequence[Patch], pristine: Overlay, edited: Overlay, engine: Engine) -> Overlay:
    """The pristine tree with those of *others* in it that *edited* carries too."""
    base = pristine.copy()
    for other in others:
        if other.id == patch.id or assess(other, edited, engine).state is not State.APPLIED:
            continue
        item = assess(other, base, engine)
        if item.state is not State.PENDING:
            hint = f"take {other.id} out of the tree first"
            raise StateError(f"{other.id} is in {edited.origin}, and not to be had without {patch.id}", hint=hint)
        put(item, base, engine)
    return base


def changed_files(tree: FolderTree, base: Overlay, package: str) -> dict[str, bytes]:
    """The package's files in *tree* that are not as in *base*. A file that *tree* lacks is not looked at."""
    rows = getattr(base.tree, "rows", None)
    found = {}
    for path in tree.paths():
        if not path.startswith(f"{package}/") or "__pycache__" in path.split("/") or path.endswith(_LEAVINGS):
            continue
        data = tree.read(RelPath(path))
        if path in base.changed or rows is None:
            same = base.bytes_of(path) == data
        else:  # RECORD knows the hash: nothing has to be fetched for a file that is as it was
            row = rows.get(path)
            same = row is not None and row.sha256 == hashlib.sha256(data).hexdigest()
        if not same:
            found[str(path)] = data
    return found


def new_revision(patch: Patch, base: Overlay, edited: Mapping[str, bytes], engine: Engine, name: str) -> Refreshed:
    """The patch as *edited* (path -> bytes, everything that differs from *base*) has it, as a new revision.

    Hunks that are still in there stay; the rest is cut anew. The revision so far becomes an earlier one.
    """
    name = name or next_revision(patch.spec.revision)
    over = base.copy()
    for path, data in edited.items():
        over.put(path, data)
    before = _patched(patch, base, engine)
    kept, parts, below = _kept(patch, base, over, engine)
    marks, notes = _marks(patch, base, before, over, engine, name)
    files, cuts = _cuts(patch, below, over, name)
    in_force = edits_for(patch, engine)
    lost = [edit for edit in in_force if edit not in kept]
    spans = {edit.versions for edit in (lost or in_force)}
    span = spans.pop() if len(spans) == 1 else f"=={engine.version}"
    rows: list[Edit] = []
    for mend in (True, False):  # into the gaps of the edits if that holds, else behind them
        rows = _rows(patch, lost, parts, cuts, span, engine, mend)
        at_hand = [edit for edit in rows if versions.matches(edit.versions, engine.version)]
        if partial.compose(at_hand, patch.folder, base, over, files):
            break
    marks[-1] = msgspec.structs.replace(marks[-1], versions=span)
    old = patch.spec.revision
    file = f"revisions/{old}.toml"
    if (patch.folder / file).exists():
        raise UsageError(f"{patch.folder / file}: there is one already", hint="give the patch's revision another id")
    in_old = marking.in_force(patch.spec.marker, engine.version)
    revision = RevisionFile(edit=in_force, marker=[msgspec.structs.replace(m, discriminates=[]) for m in in_old])
    files[file] = toml_text(table_of(revision)).encode("utf-8")
    earlier = [*patch.spec.earlier, Revision(id=old, edits=file, note="TODO: what it lacks")]
    spec = msgspec.structs.replace(patch.spec, revision=name, edit=rows, marker=marks, earlier=earlier)
    ids = dict.fromkeys(edit.id for edit in rows if edit not in patch.spec.edit)
    wanted = {path: over.bytes_of(path) for path in over.changed}
    return Refreshed(spec, files, tuple(dict.fromkeys(e.id for e in kept)), tuple(ids), tuple(notes), wanted)


def next_revision(revision: str) -> str:
    """``R1`` -> ``R2``, ``P1V3`` -> ``P1V4``; without a number at its end it gets one."""
    found = re.fullmatch(r"(.*?)(\d+)", revision)
    return f"{found[1]}{int(found[2]) + 1}" if found else f"{revision}-2"


def _patched(patch: Patch, base: Overlay, engine: Engine) -> Overlay:
    item = assess(patch, base, engine)
    if item.state is not State.PENDING:
        text = f"{patch.id} is {item.state.value} in {base.origin}: {'; '.join(item.reasons)}"
        raise StateError(text, hint="a new revision is cut for a release that the patch applies to")
    over = base.copy()
    put(item, over, engine)
    return over


def _kept(
    patch: Patch, base: Overlay, over: Overlay, engine: Engine
) -> tuple[list[Edit], dict[str, Codemod | Anchor], Overlay]:
    """The edits that are wholly in the edited tree, what is there of others (by id), and the base with all that."""
    kept: list[Edit] = []
    parts: dict[str, Codemod | Anchor] = {}
    below = base.copy()
    for edit in edits_for(patch, engine):
        hunks = editing.examine(edit, patch.folder, over)
        whole = all(hunk.state in partial.THERE for hunk in hunks)
        part = edit if whole else partial.remainder(edit, hunks, partial.THERE)
        if part is None:
            continue
        if all(hunk.state in partial.READY for hunk in editing.examine(part, patch.folder, below)):
            editing.forward(part, patch.folder, below)
            if whole:
                kept.append(edit)
            elif isinstance(part, partial.Hunked):
                parts[edit.id] = part
    return kept, parts, below


def _rows(
    patch: Patch,
    lost: Sequence[Edit],
    parts: Mapping[str, Codemod | Anchor],
    cuts: Sequence[Edit],
    span: str,
    engine: Engine,
    mend: bool,
) -> list[Edit]:
    """The edits of the new revision: what stays in its place, what was cut in the gaps (*mend*) or behind it."""
    rows: list[Edit] = []
    left = list(cuts)
    for edit in patch.spec.edit:
        if edit not in lost:
            rows.append(edit)
            continue
        part = parts.get(edit.id)
        if part is not None and mend:
            part, left = partial.mended(edit, part, left)
        if part is not None:
            rows.append(msgspec.structs.replace(part, versions=span))
        if edit.versions != span:
            elsewhere = versions.joined(edit.versions, f"!={engine.version}")
            rows.append(msgspec.structs.replace(edit, versions=elsewhere))
    free = [edit for edit in lost if edit.id not in parts]
    return [*rows, *(msgspec.structs.replace(cut, versions=span) for cut in _named(left, free, rows))]


def _marks(
    patch: Patch, base: Overlay, before: Overlay, over: Overlay, engine: Engine, name: str
) -> tuple[list[Marker], list[str]]:
    """The markers that are still there, and one that the revision so far lacks; *over* may get it as a statement."""
    rows, notes = [], []
    elsewhere = any(edit not in edits_for(patch, engine) for edit in patch.spec.edit)
    for marker in patch.spec.marker:
        if not versions.matches(marker.versions, engine.version) or marking.present(marker, over):
            rows.append(marker)
            continue
        notes.append(f"marker {marker.value} is not in {marker.file} of {engine.version} any more")
        if elsewhere:  # variants for other releases may still have it
            span = versions.joined(marker.versions, f"!={engine.version}")
            rows.append(msgspec.structs.replace(marker, versions=span))
    named = {name for marker in rows for name in marker.discriminates}
    older = [*(item.id for item in patch.earlier if item.id not in named), patch.spec.revision]
    differing = [path for path in over.changed if path.endswith(".py") and over.bytes_of(path) != before.bytes_of(path)]
    for path in differing:
        text, was = over.text_of(path) or "", before.text_of(path) or ""
        for marker in suggest.candidates(path, was, text):
            if not marking.present(marker, base):
                return [*rows, msgspec.structs.replace(marker, discriminates=older)], notes
    word = re.sub(r"\W", "_", f"_graft_{patch.id.partition('/')[2]}_{name}".lower())
    for path in differing:
        made = suggest.with_marker(path, before.text_of(path) or "", over.text_of(path) or "", word)
        if made:
            over.put(path, made[0].encode("utf-8"))
            notes.append(f"{word} was added to {path}: nothing else tells this revision from {patch.spec.revision}")
            return [*rows, msgspec.structs.replace(made[1], discriminates=older)], notes
    raise StateError(
        f"nothing in compiled code tells the new revision from {patch.spec.revision}", hint="change Python code"
    )


def _cuts(patch: Patch, below: Overlay, over: Overlay, revision: str) -> tuple[dict[str, bytes], list[Edit]]:
    """What *over* has and *below* has not, as edits, and the sources of new files."""
    files: dict[str, bytes] = {}
    edits: list[Edit] = []
    for path in over.changed:
        data = over.bytes_of(path)
        if below.original(path) is None and data is not None and below.bytes_of(path) != data:
            source = f"files/{revision}/{path.partition('/')[2]}"
            files[source] = data
            edits.append(NewFile(id=f"file-{len(files)}", path=path, source=source))
    return files, [*edits, *cut_best(texts(below, over))]


def _named(cuts: Sequence[Edit], lost: Sequence[Edit], rows: Sequence[Edit]) -> list[Edit]:
    """*cuts* under the ids and reasons of the lost edits in their place, else under ids that nothing has."""
    free, done = list(lost), []
    taken = {edit.id for edit in rows if edit not in lost}
    for cut in cuts:
        where = getattr(cut, "file", getattr(cut, "path", ""))
        same = [
            edit for edit in free if getattr(edit, "file", getattr(edit, "path", "")) == where and edit.id not in taken
        ]
        name, why = cut.id, cut.why
        if same:
            free.remove(same[0])
            name, why = same[0].id, partial.reason_of(same[0])
        while name in taken:
            name += "-2"
        taken.add(name)
        done.append(msgspec.structs.replace(cut, id=name, why=why))
    return done
