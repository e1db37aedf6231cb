"""``graftwork apply TARGET --tree DIR``: all patches or none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graftwork.catalog.catalog import Catalog
from graftwork.catalog.targets import Target
from graftwork.cli import options
from graftwork.ui import Screen

if TYPE_CHECKING:
    from graftwork.patching.plan import Plan


@click.command("apply")
@options.common
@options.tree_option(required=True)
@options.engine_option
@click.option("--upgrade", is_flag=True, help="Take an earlier revision of a patch out first.")
def command(
    screen: Screen,
    found: Catalog,
    wanted: Target,
    folder: Path,
    engine_version: str | None,
    upgrade: bool,
) -> int:
    """Apply the patches of TARGET to a folder. A second run changes nothing."""
    from graftwork.images.from_plan import tree_record
    from graftwork.images.record import plain
    from graftwork.patching import pycache, report
    from graftwork.patching.apply import apply
    from graftwork.trees.folder import open_folder

    tree = open_folder(folder, wanted.engine)
    engine = options.engine_of(wanted, tree, engine_version)
    lock = found.lock(wanted)

    def record_of(plan: Plan) -> dict[str, Any]:
        minor = next((m for c in plan.patched if (m := pycache.minor_of(tree.root / c.path))), None)
        return plain(tree_record(wanted, plan, lock, minor))

    planned = apply(
        tree,
        wanted.name,
        found.patches(wanted),
        engine,
        record_of,
        optional=wanted.optional,
        upgrade=upgrade,
    )
    screen.step("target", f"{wanted.name}: {wanted.engine} {engine.version} on {wanted.platform} ({tree.origin})")
    report.show(planned, screen)
    refusal = planned.refusal()
    document = report.as_dict(planned, wanted.name, wanted.engine)
    if refusal is not None:
        screen.error(refusal, document)
        return refusal.exit_code
    if screen.as_json:
        screen.document(document)
    wrote = [change.path for change in planned.changes]
    for path in wrote:
        screen.step("wrote", path)
    screen.result(f"applied: {len(wrote)} files written" if wrote else "nothing to do: every patch is in the tree")
    return 0
