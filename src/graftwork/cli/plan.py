"""``graftwork plan TARGET``: what each patch is in a tree. Writes nothing."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import click

from graftwork.catalog.catalog import Catalog
from graftwork.catalog.targets import Target
from graftwork.cli import options
from graftwork.ui import Screen


@click.command("plan")
@options.common
@options.tree_option()
@click.option("--wheel", type=click.Path(path_type=Path), help="A wheel file; without it or --tree, the pinned wheel.")
@options.engine_option
@click.option("--diff", "as_diff", is_flag=True, help="Print what would change as a unified diff.")
def command(
    screen: Screen,
    found: Catalog,
    wanted: Target,
    folder: Path | None,
    wheel: Path | None,
    engine_version: str | None,
    as_diff: bool,
) -> int:
    """Show the state of every patch of TARGET in a tree, and what applying them would change."""
    from graftwork.patching import report
    from graftwork.patching.plan import plan
    from graftwork.trees.tree import Tree

    if as_diff:
        screen.stream = sys.stderr  # stdout holds the diff and nothing else
    source: AbstractContextManager[Tree]
    if folder is not None and wheel is not None:
        raise click.UsageError("--tree and --wheel are two sources; give one")
    if folder is not None:
        from graftwork.trees.folder import open_folder

        source = nullcontext(open_folder(folder, wanted.engine))
    elif wheel is not None:
        from graftwork.trees.wheel import WheelTree

        source = WheelTree(wheel)
    else:
        source = options.pinned_wheel(wanted, found.lock(wanted), screen)
    with source as tree:
        engine = options.engine_of(wanted, tree if folder or wheel else None, engine_version)
        planned = plan(tree, found.patches(wanted), engine, wanted.optional)
        options.say_wheel(tree, screen)
    screen.step("target", f"{wanted.name}: {wanted.engine} {engine.version} on {wanted.platform} ({planned.origin})")
    report.show(planned, screen)
    refusal = planned.refusal()
    document = report.as_dict(planned, wanted.name, wanted.engine)
    if refusal is not None:
        screen.error(refusal, document)
        return refusal.exit_code
    if screen.as_json:
        screen.document(document)
    elif as_diff:
        click.echo(report.diff(planned), nl=False)
    screen.result(f"{len(planned.pending)} of {len(planned.patches)} patches to apply, {len(planned.changes)} files")
    return 0
