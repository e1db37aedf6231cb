"""The folder of a new patch, made from a change: real edits and markers, and TODO for what only a person knows."""

from __future__ import annotations

import ast
import datetime
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from packaging.version import Version

from graftwork.catalog.catalog import Catalog
from graftwork.catalog.patches import Anchor, Codemod, Edit, Marker, NewFile, PatchFile, Searched, Upstream
from graftwork.catalog.toml import table_of, toml_text
from graftwork.errors import StateError, TreeError, UsageError
from graftwork.harness import suggest
from graftwork.names import patch_id
from graftwork.patching import regions
from graftwork.patching.assess import Engine
from graftwork.patching.overlay import Overlay
from graftwork.patching.plan import plan
from graftwork.trees.tree import Tree
from graftwork.upstream.cut_codemod import cut_best
from graftwork.upstream.incoming import Incoming

TODO = "TODO"


@dataclass(frozen=True)
class Skeleton:
    """A patch that is not written yet: its patch.toml, the other files of its folder, and what to tell the user."""

    spec: PatchFile
    files: dict[str, bytes]
    candidates: tuple[Marker, ...]
    added: tuple[Marker, ...]
    after: dict[str, bytes | None] = field(repr=False)


def skeleton(name: str, change: Incoming, over: Overlay, version: Version, today: datetime.date, ref: str) -> Skeleton:
    """The patch *name* that makes *over*, into which *change* was put, of the tree below it.

    Each Python file gets a marker: a candidate where the change has one, else a statement of our own (``added``).
    *ref* is the public pull request, as ``owner/repository#number``, if there is one.
    """
    over = over.copy()
    candidates, markers, added = _marked(over, f"_graft_{name.partition('/')[2]}".replace("-", "_").replace(".", "_"))
    if not markers:
        raise UsageError(
            f"{change.origin}: changes no Python code: nothing of it could be proved in an image",
            hint="a patch needs a marker in compiled code: make the change in Python",
        )
    edits: list[Edit] = []
    files: dict[str, bytes] = {}
    texts: dict[str, tuple[str, str]] = {}
    for path, (old, new) in over.differing().items():
        if new is None:
            raise UsageError(f"{path}: a patch cannot delete a file of the engine", hint="edit what uses it instead")
        if old is None:
            source = f"files/{path.partition('/')[2]}"
            files[source] = new
            edits.append(NewFile(id=f"file-{len(files)}", path=path, source=source))
        else:
            texts[path] = (old.decode("utf-8"), new.decode("utf-8"))
    reasoned = [_reasons(edit) for edit in [*edits, *cut_best(texts)]]
    spec = _spec(name, change, reasoned, markers, version, today, ref)
    files |= {
        "patch.toml": toml_text(table_of(spec)).encode("utf-8"),
        "README.md": _readme(spec, change).encode("utf-8"),
        f"tests/test_{name.partition('/')[2].replace('-', '_').replace('.', '_')}.py": _test(markers, over),
    }
    return Skeleton(
        spec, files, tuple(candidates), tuple(added), {path: new for path, (_, new) in over.differing().items()}
    )


def write(catalog: Catalog, made: Skeleton, tree: Tree, engine: Engine) -> Path:
    """Write the folder, in one step, after the planner made of it exactly what the change makes. Returns the folder."""
    patch_id(made.spec.id)
    folder = catalog.root / "patches" / made.spec.id
    if folder.exists():
        raise UsageError(f"{folder}: there is one already", hint="choose another name, or graftwork refresh it")
    try:
        scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=catalog.root))
    except OSError as error:
        raise TreeError(f"{catalog.root}: cannot be written: {error.strerror}") from None
    try:
        inner = scratch / "patches" / made.spec.id
        for name, data in made.files.items():
            (inner / name).parent.mkdir(parents=True, exist_ok=True)
            (inner / name).write_bytes(data)
        _prove(Catalog(scratch), made, tree, engine)
        folder.parent.mkdir(exist_ok=True)
        inner.rename(folder)
    except OSError as error:
        raise TreeError(f"{folder}: cannot be written: {error.strerror}; nothing was left there") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _prove(catalog: Catalog, made: Skeleton, tree: Tree, engine: Engine) -> None:
    planned = plan(tree, [catalog.patch(made.spec.id)], engine)
    refusal = planned.refusal()
    if refusal:
        raise StateError(f"the new patch does not hold: {refusal.message}", hint=refusal.hint)
    if {change.path: change.new for change in planned.changes} != made.after:
        raise StateError("the new patch makes other bytes than the change; nothing was written")


def _marked(over: Overlay, name: str) -> tuple[list[Marker], list[Marker], list[Marker]]:
    """(all candidates, the markers to use, those of them that were added to *over* for want of a candidate)."""
    candidates, markers, added = [], [], []
    for path, (old, new) in over.differing().items():
        if not path.endswith(".py") or new is None:
            continue
        before, after = over_text(old), over.text_of(path) or ""
        found = suggest.candidates(path, before, after)
        candidates += found
        markers += suggest.chosen(found)
        made = None if found else suggest.with_marker(path, before, after, name)
        if made:
            over.put(path, made[0].encode("utf-8"))
            markers.append(made[1])
            added.append(made[1])
    return candidates, markers, added


def over_text(data: bytes | None) -> str:
    """A file's text; empty where there is none."""
    return "" if data is None else data.decode("utf-8")


def _spec(
    name: str,
    change: Incoming,
    edits: Sequence[Edit],
    markers: Sequence[Marker],
    version: Version,
    today: datetime.date,
    ref: str,
) -> PatchFile:
    look = f"{TODO}: what was searched (an error's words, the file, the function), and that nothing was found"
    searched = Searched(what=look, how=f"{TODO}: where and with which words", date=today.isoformat())
    seen = (
        Upstream(
            ref=ref,
            kind="pull",
            relation="same-fix",
            expect=f"{TODO}: what becomes of this patch when it is merged or closed",
        )
        if ref
        else None
    )
    return PatchFile(
        id=name,
        revision="R1",
        title=change.title or f"{TODO}: one line, what it does",
        symptom=f"{TODO}: what an operator sees without it, in the words of the log",
        why=f"{TODO}: the defect, in a few lines",
        drop_when=f"{TODO}: what would make it needless; add [[obsolete_when]] with a fact of the tree, if any",
        versions=f"=={version}",
        edit=list(edits),
        marker=list(markers),
        upstream=[seen] if seen else [],
        searched=[] if seen else [searched],
    )


def _reasons(edit: Edit) -> Edit:
    """*edit* with a place for the reason of each hunk."""
    why = f"{TODO}: why this hunk"
    if isinstance(edit, (Anchor, Codemod)):
        return msgspec.structs.replace(edit, hunk=[msgspec.structs.replace(hunk, why=why) for hunk in edit.hunk])
    return msgspec.structs.replace(edit, why=why)


def _places(edit: Edit) -> list[str]:
    """Where each hunk of an edit is."""
    if isinstance(edit, (Anchor, Codemod)):
        return [f"`{edit.file}`, `{edit.scope}`" if edit.scope else f"`{edit.file}`"] * len(edit.hunk)
    return [f"`{edit.path}`, new"] if isinstance(edit, NewFile) else []


def _readme(spec: PatchFile, change: Incoming) -> str:
    places = [place for edit in spec.edit for place in _places(edit)]
    numbered = "\n".join(f"{number}. {place}: {TODO}: what it does" for number, place in enumerate(places, 1))
    outside = "\n".join(f"- `{path}`: {TODO}: why the patch is whole without it" for path in change.left_out)
    left = f"\n## What upstream changes besides\n\n{outside}\n" if outside else ""
    return f"""# {spec.id}

{spec.title if change.title else f"{TODO}: one line, what it does"}

## What is wrong, and who sees it

{TODO}: the defect, and how an operator meets it. Mark each fact as measured, read or claimed.

## What we change, hunk by hunk

{numbered}
{left}
## What it costs

{TODO}: time, memory, and whom it could hurt.

## Not established

{TODO}: what nobody has checked yet.

## Tests

    GRAFTWORK_TREE=DIR pytest -p graftwork.harness.plugin patches/{spec.id}/tests

{TODO}: what is executed, what is replaced, and why the stock code fails.

## Drop it when

{TODO}: what would make it needless.
"""


def _test(markers: Sequence[Marker], over: Overlay) -> bytes:
    """A test that fails until somebody writes it: it names the changed function that it should run."""
    marker = next((item for item in markers if _callable(item, over)), None)
    where = marker or markers[0]
    head = f'''"""{TODO}: what the defect does and what is looked at. On stock code they must fail by the defect."""

from __future__ import annotations

from pathlib import Path

import pytest

from graftwork.harness.isolate import {"load_function" if marker else "load_module"}, read_engine_file

FILE = "{where.file}"


def test_{TODO.lower()}(engine_tree: Path) -> None:
    file = read_engine_file(engine_tree, FILE)
'''
    load = f'load_function(file, "{where.function}", {{}})' if marker else 'load_module(file, "under_test")'
    body = f"    subject = {load}  # {TODO}: the globals or stubs that it needs\n"
    return (
        head
        + body
        + f'    pytest.fail(f"{TODO}: call {{subject}} as the engine does, and assert what the defect breaks")\n'
    ).encode()


def _callable(marker: Marker, over: Overlay) -> bool:
    """Whether the marker stands in a function that ``load_function`` can take: of the module, or a method."""
    tree = regions.parsed(over.text_of(marker.file) or "", marker.file)
    found = [(node, parents) for name, node, parents in regions.definitions(tree) if name == marker.function]
    return any(
        not isinstance(node, ast.ClassDef) and all(isinstance(parent, ast.ClassDef) for parent in parents)
        for node, parents in found
    )
