"""``graftwork new PATCH``: a patch's folder from a change that exists already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from graftwork.catalog.catalog import Catalog
from graftwork.cli import opening
from graftwork.errors import UsageError
from graftwork.ui import Screen

if TYPE_CHECKING:
    from graftwork.harness.skeleton import Skeleton

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command("new")
@opening.for_patch
@click.option("--from-diff", "diff", metavar="FILE", type=_FILE, help="A unified diff.")
@click.option("--from-pr", "mail", metavar="FILE", type=_FILE, help="A pull request as mail: its .patch, all commits.")
@click.option("--ref", metavar="OWNER/REPO#N", default="", help="The public pull request that the change is from.")
@opening.tree_options
def command(
    screen: Screen,
    found: Catalog,
    patch: str,
    diff: Path | None,
    mail: Path | None,
    ref: str,
    folder: Path | None,
    target_name: str | None,
    engine_version: str | None,
) -> int:
    """Make patches/PATCH (engine/name) from a diff or a pull request, and what is left to do by hand.

    The change must fit the tree exactly. Edits are cut in their functions, as node patterns where whole statements
    change, else as anchors. Markers are looked for in compiled code. The planner must make the same bytes of it before
    anything is written.
    """
    import datetime

    from graftwork.harness import skeleton
    from graftwork.names import patch_id
    from graftwork.patching.overlay import Overlay
    from graftwork.upstream import incoming

    try:
        name = patch_id(patch)
    except ValueError as error:
        raise UsageError(str(error)) from None
    source = diff or mail
    if source is None or (diff and mail):
        raise click.UsageError("give the change: --from-diff FILE or --from-pr FILE")
    if ref:
        _check_ref(ref)
    engine = name.partition("/")[0]
    change = incoming.read(source, engine)
    target = found.target(target_name) if target_name else None
    with opening.engine_tree(screen, found, engine, folder, target, engine_version) as (tree, where):
        over = Overlay(tree)
        incoming.apply_to(change, over)
        made = skeleton.skeleton(name, change, over, where.version, datetime.date.today(), ref)
        written = skeleton.write(found, made, tree, where)
    _say(screen, made, change.left_out, written)
    if change.number and not ref:
        screen.line(f"the mail says #{change.number}: name it under [[upstream]], as owner/repository#{change.number}")
    if screen.as_json:
        screen.document(_document(made, change.left_out, written))
    screen.result(f"wrote {written}: fill in each {skeleton.TODO}, then: graftwork lint {name}")
    return 0


def _check_ref(ref: str) -> None:
    import msgspec

    from graftwork.catalog.patches import Ref

    try:
        msgspec.convert(ref, Ref)
    except msgspec.ValidationError:
        raise UsageError(f"--ref: not owner/repository#number: {ref!r}") from None


def _say(screen: Screen, made: Skeleton, left_out: tuple[str, ...], folder: Path) -> None:
    from graftwork.catalog.patches import Anchor, Codemod, NewFile

    for edit in made.spec.edit:
        if isinstance(edit, (Anchor, Codemod)):
            what = "anchor" if isinstance(edit, Anchor) else "node pattern"
            count = f"{len(edit.hunk)} {what}{'s' * (len(edit.hunk) > 1)}"
            screen.step("edit", f"{edit.id}: {edit.file}, {edit.scope or 'the whole file'}, {count}")
        elif isinstance(edit, NewFile):
            screen.step("edit", f"{edit.id}: {edit.path}, a new file")
    for marker in made.spec.marker:
        why = " (added: the change leaves nothing of its own in compiled code)" if marker in made.added else ""
        screen.step("marker", f"{marker.kind} {marker.value} in {marker.function} of {marker.file}{why}")
    others = [marker.value for marker in made.candidates if marker not in made.spec.marker]
    if others:
        screen.step("or", f"other candidates: {', '.join(dict.fromkeys(others))}")
    for path in left_out:
        screen.step("left out", f"{path}: outside the engine's package, so not in an image")


def _document(made: Skeleton, left_out: tuple[str, ...], folder: Path) -> dict[str, object]:
    import msgspec

    return {
        "patch": made.spec.id,
        "folder": str(folder),
        "files": sorted(made.files),
        "edits": [msgspec.to_builtins(edit) for edit in made.spec.edit],
        "markers": [msgspec.to_builtins(marker) for marker in made.spec.marker],
        "candidates": [msgspec.to_builtins(marker) for marker in made.candidates],
        "added_markers": [msgspec.to_builtins(marker) for marker in made.added],
        "left_out": list(left_out),
    }
