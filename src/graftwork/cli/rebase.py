"""``graftwork rebase PATCH --to VERSION``: a three-way proposal for another release."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graftwork.catalog.catalog import Catalog, Patch
from graftwork.cli import opening, writing
from graftwork.errors import StateError
from graftwork.ui import Screen

if TYPE_CHECKING:
    from graftwork.upstream.rebase import Rebased

_DIR = click.Path(path_type=Path)


@click.command("rebase")
@opening.for_patch
@click.option("--to", "to", metavar="V", required=True, help="The release to carry the patch to.")
@click.option("--tree", "folder", metavar="DIR", type=_DIR, help="Its tree, if not from the package index.")
@click.option("--from", "since", metavar="V", help="A release where the patch applies; else that of the first target.")
@click.option("--from-tree", "base_folder", metavar="DIR", type=_DIR, help="The tree of --from.")
@click.option("--work", metavar="DIR", type=_DIR, help="Where conflicts are written, and read back once settled.")
@click.option("--write", is_flag=True, help="Write the proposal to patch.toml; without it nothing is.")
def command(
    screen: Screen,
    found: Catalog,
    patch: str,
    to: str,
    folder: Path | None,
    since: str | None,
    base_folder: Path | None,
    work: Path | None,
    write: bool,
) -> int:
    """Propose variants of PATCH's edits for release V, merged from the release where it applies.

    Conflicts are marked as git marks them, with the old release between. Run the patch's tests on the result.
    """
    from dataclasses import replace

    from graftwork.harness.suggest import candidates
    from graftwork.upstream.rebase import rebase

    loaded = found.patch_named(patch)
    with ExitStack() as stack:
        base, old = stack.enter_context(opening.patch_tree(screen, found, loaded, base_folder, None, since))
        onto, new = stack.enter_context(opening.engine_tree(screen, found, loaded.engine, folder, None, to))
        settled = _settled(work)
        made = rebase(loaded, base, old, onto, replace(new, platform=old.platform), candidates, settled)
    screen.step("patch", f"{loaded.id} {loaded.spec.revision}: {old.version} -> {new.version}")
    for edit in made.kept:
        screen.step("applies", edit)
    for edit in made.lost:
        screen.step("cut anew", edit)
    for note in made.notes:
        screen.step("note", note)
    if made.spec is None:
        return _conflicts(screen, loaded, made, work)
    return _proposal(screen, found, loaded, made, write)


def _proposal(screen: Screen, found: Catalog, patch: Patch, made: Rebased, write: bool) -> int:
    from graftwork.patching.report import file_diff
    from graftwork.upstream.rewrite import rewritten

    assert made.spec is not None
    file = patch.folder / "patch.toml"
    old = file.read_text("utf-8")
    text = rewritten(old, patch.spec, made.spec)
    same = text == old
    diff = "" if same else file_diff(f"patches/{patch.id}/patch.toml", old.encode("utf-8"), text.encode("utf-8"))
    if diff:
        screen.line(diff.rstrip("\n"))
    if write and not same:
        writing.write(file, text.encode("utf-8"))
    if screen.as_json:
        screen.document({**_facts(patch, made), "diff": diff, "written": write and not same})
    said = f"wrote {file}" if write else "a proposal: --write puts it into patch.toml"
    said = "it applies as it is, patch.toml stays" if same else said
    screen.result(f"{said}; then run the patch's tests on that release")
    return 0


def _conflicts(screen: Screen, patch: Patch, made: Rebased, work: Path | None) -> int:
    for path in made.conflicts:
        for number, line in _marked(made.merged[path]):
            screen.line(f"{path}:{number}: {line}")
    if work is not None:
        for path, data in made.merged.items():
            writing.write(work / path, data, folders=True)
    hint = f"settle the marks in {work}, then run it again" if work else "write the files to settle: --work DIR"
    refused = StateError(f"{patch.id}: conflicts in {', '.join(made.conflicts)}; patch.toml is as it was", hint=hint)
    merged = {path: made.merged[path].decode("utf-8", "replace") for path in made.conflicts}
    screen.error(refused, {**_facts(patch, made), "merged": merged})
    return refused.exit_code


def _marked(data: bytes) -> Iterator[tuple[int, str]]:
    """The lines of the conflicts, marks included, with their numbers."""
    inside = False
    for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), 1):
        inside = inside or line.startswith("<<<<<<< ")
        if inside:
            yield number, line
        inside = inside and not line.startswith(">>>>>>> ")


def _settled(work: Path | None) -> dict[str, bytes]:
    """The files below *work*, which an earlier run has written."""
    if work is None or not work.is_dir():
        return {}
    files = (file for file in sorted(work.rglob("*")) if file.is_file() and not file.name.startswith("."))
    return {file.relative_to(work).as_posix(): file.read_bytes() for file in files}


def _facts(patch: Patch, made: Rebased) -> dict[str, object]:
    return {
        "patch": patch.id,
        "applies": list(made.kept),
        "cut_anew": list(made.lost),
        "conflicts": list(made.conflicts),
        "notes": list(made.notes),
    }
