"""``graftwork revert TARGET --tree DIR``: the pristine bytes back, exactly."""

from __future__ import annotations

from pathlib import Path

import click

from graftwork.catalog.catalog import Catalog
from graftwork.catalog.targets import Target
from graftwork.cli import options
from graftwork.ui import Screen


@click.command("revert")
@options.common
@options.tree_option(required=True)
@options.engine_option
def command(screen: Screen, found: Catalog, wanted: Target, folder: Path, engine_version: str | None) -> int:
    """Restore every file that the patches of TARGET are in."""
    from graftwork.names import rel_path
    from graftwork.patching.apply import revert
    from graftwork.trees.folder import open_folder

    tree = open_folder(folder, wanted.engine)
    engine = options.engine_of(wanted, tree, engine_version)

    def pristine(path: str) -> bytes | None:
        with options.pinned_wheel(wanted, found.lock(wanted), screen) as wheel:
            name = rel_path(path)
            return wheel.read(name) if wheel.exists(name) else None

    paths = revert(tree, wanted.name, found.patches(wanted), engine, pristine)
    for path in paths:
        screen.step("restored", path)
    if screen.as_json:
        screen.document({"target": wanted.name, "tree": tree.origin, "restored": paths})
    screen.result(f"reverted: {len(paths)} files restored" if paths else "nothing to revert")
    return 0
