"""``graftwork refresh PATCH``: better anchors, or a new revision from a tree that was edited by hand."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graftwork.catalog.catalog import Catalog, Patch
from graftwork.cli import opening, writing
from graftwork.errors import StateError
from graftwork.ui import Screen

if TYPE_CHECKING:
    from graftwork.harness.refresh import Refreshed
    from graftwork.patching.assess import Engine
    from graftwork.patching.overlay import Overlay

_DIR = click.Path(path_type=Path)


@click.command("refresh")
@opening.for_patch
@click.option("--tree", "edited", metavar="DIR", type=_DIR, help="A tree with PATCH in it, edited by hand.")
@click.option("--revision", metavar="ID", default="", help="The id of the new revision; else the next number.")
@click.option("--target", "target_name", metavar="T", help="Where the pristine files are: the pinned wheel of T.")
@click.option("--engine-version", metavar="V", help="The same: a release on the package index.")
@click.option("--pristine", metavar="DIR", type=_DIR, help="The same: a folder with the engine's package.")
@click.option("--write", is_flag=True, help="Write the proposal; without it nothing is written.")
def command(
    screen: Screen,
    found: Catalog,
    patch: str,
    edited: Path | None,
    revision: str,
    target_name: str | None,
    engine_version: str | None,
    pristine: Path | None,
    write: bool,
) -> int:
    """Cut PATCH anew, and show the change of its patch.toml.

    Without --tree: anchors and diffs become as small and as scoped as they can be. With --tree: what the tree has
    becomes a new revision of PATCH, and the revision so far an earlier one.
    """
    from graftwork.harness import refresh
    from graftwork.harness import revision as revisions
    from graftwork.patching.overlay import Overlay
    from graftwork.trees.folder import open_folder

    loaded = found.patch_named(patch)
    with opening.patch_tree(screen, found, loaded, pristine, target_name, engine_version) as (tree, engine):
        base = Overlay(tree)
        if edited is None:
            made = refresh.recut_anchors(loaded, base, engine)
        else:
            folder = open_folder(edited, loaded.engine)
            target = opening.target_of(found, loaded, target_name)
            others = found.patches(target) if target else []
            base = revisions.base_of(loaded, others, base, Overlay(folder), engine)
            files = revisions.changed_files(folder, base, loaded.engine)
            if _same(loaded, base, files, engine):
                screen.result(f"{edited} has {loaded.label} as it is: nothing to take over")
                return 0
            made = revisions.new_revision(loaded, base, files, engine, revision)
        text = _checked(found, loaded, made, base, engine)
    return _show(screen, loaded, made, text, write)


def _same(patch: Patch, base: Overlay, files: dict[str, bytes], engine: Engine) -> bool:
    """Whether the edited tree is what the patch makes."""
    from graftwork.patching.plan import plan

    planned = plan(base, [patch], engine)
    return planned.refusal() is None and {change.path: change.new for change in planned.changes} == files


def _checked(found: Catalog, patch: Patch, made: Refreshed, base: Overlay, engine: Engine) -> str:
    """The new patch.toml, after a copy of the folder with it was loaded, and made of *base* what it should."""
    from graftwork.patching.plan import plan
    from graftwork.upstream.rewrite import rewritten

    text = rewritten((patch.folder / "patch.toml").read_text("utf-8"), patch.spec, made.spec)
    with tempfile.TemporaryDirectory(prefix="graftwork-refresh-") as scratch:
        folder = Path(scratch) / "patches" / patch.id
        shutil.copytree(patch.folder, folder)
        for name, data in {**made.files, "patch.toml": text.encode("utf-8")}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        planned = plan(base, [Catalog(Path(scratch)).patch(patch.id)], engine)
        refusal = planned.refusal()
        if refusal:
            raise StateError(f"the new cut does not hold: {refusal.message}", hint=refusal.hint)
        over = base.copy()
        for path, wanted in made.wanted.items():
            over.put(path, wanted)
        if {change.path: change.new for change in planned.changes} != _differing(base, over):
            raise StateError("the new cut makes other bytes than the tree has", hint="cut it by hand")
    return text


def _differing(base: Overlay, over: Overlay) -> dict[str, bytes | None]:
    return {path: over.bytes_of(path) for path in over.changed if over.bytes_of(path) != base.bytes_of(path)}


def _show(screen: Screen, patch: Patch, made: Refreshed, text: str, write: bool) -> int:
    from graftwork.patching.report import file_diff

    file = patch.folder / "patch.toml"
    old = file.read_text("utf-8")
    name = f"patches/{patch.id}"
    diff = file_diff(f"{name}/patch.toml", old.encode("utf-8"), text.encode("utf-8")) if text != old else ""
    diff += "".join(file_diff(f"{name}/{path}", None, data) for path, data in sorted(made.files.items()))
    screen.step("patch", f"{patch.id} {patch.spec.revision}" + _arrow(patch, made))
    for edit in made.kept:
        screen.step("kept", edit)
    for edit in made.cut:
        screen.step("cut anew", edit)
    for note in made.notes:
        screen.step("note", note)
    if diff:
        screen.line(diff.rstrip("\n"))
    if write and diff:
        _write(patch, made, text)
    if screen.as_json:
        cut = {"kept": list(made.kept), "cut_anew": list(made.cut), "notes": list(made.notes)}
        facts = {"patch": patch.id, "revision": made.spec.revision, "diff": diff, "written": write and bool(diff)}
        screen.document({**facts, **cut})
    said = f"wrote {file}" if write else "a proposal: --write writes it"
    screen.result(f"{said}; then run the patch's tests: graftwork prove" if diff else "every anchor is as it should be")
    return 0


def _arrow(patch: Patch, made: Refreshed) -> str:
    return f" -> {made.spec.revision}" if made.spec.revision != patch.spec.revision else ""


def _write(patch: Patch, made: Refreshed, text: str) -> None:
    """The other files first: only patch.toml, written last and in one step, makes them part of the patch."""
    for name, data in made.files.items():
        writing.write(patch.folder / name, data, folders=True)
    writing.write(patch.folder / "patch.toml", text.encode("utf-8"))
