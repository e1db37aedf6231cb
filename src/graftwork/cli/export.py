"""``graftwork export PATCH``: the patch as a commit for upstream."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from graftwork.catalog.catalog import Catalog
from graftwork.cli import opening, writing
from graftwork.ui import Screen


@click.command("export")
@opening.for_patch
@click.option("--out", metavar="FILE", type=click.Path(path_type=Path), help="Where to write it; without it, stdout.")
@opening.tree_options
def command(
    screen: Screen,
    found: Catalog,
    patch: str,
    out: Path | None,
    folder: Path | None,
    target_name: str | None,
    engine_version: str | None,
) -> int:
    """Write PATCH as mail for git am, against upstream's layout, without markers and scaffolding.

    The release is that of --target, --engine-version or --tree; without one, of the first target that has PATCH.
    """
    from graftwork.upstream.export import export

    if out is None:
        screen.stream = sys.stderr  # stdout holds the mail and nothing else
    loaded = found.patch_named(patch)
    with opening.patch_tree(screen, found, loaded, folder, target_name, engine_version) as (tree, engine):
        made = export(loaded, tree, engine)
    marks = made.stripped
    screen.step("commit", f"{made.subject} ({loaded.id} {loaded.spec.revision} on {engine.version})")
    for path in made.paths:
        screen.step("changes", path)
    for name, to in marks.renamed.items():
        screen.step("renamed", f"{name} -> {to}")
    for name in marks.dropped:
        screen.step("dropped", name)
    for name in marks.kept:
        screen.step("kept", f"{name}, as a name of the change itself")
    if out is not None:
        writing.write(out, made.mail)
        screen.result(f"wrote {out}: git am {out}, then run upstream's formatter")
    elif not screen.as_json:
        click.echo(made.mail.decode("utf-8"), nl=False)
    if screen.as_json:
        screen.document(
            {
                "patch": loaded.id,
                "version": str(engine.version),
                "subject": made.subject,
                "paths": list(made.paths),
                "renamed": marks.renamed,
                "dropped": list(marks.dropped),
                "kept": list(marks.kept),
                "out": None if out is None else str(out),
                "mail": made.mail.decode("utf-8"),
            }
        )
    return 0
