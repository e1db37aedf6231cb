"""``graftwork report``: one HTML page about all patches. Writes that page and nothing else."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import click

from graftwork.catalog.catalog import Catalog
from graftwork.cli import options, writing
from graftwork.cli.matrix import Wanted, matrices
from graftwork.ui import Screen


@click.command("report")
@options.checkout
@click.option("--out", metavar="FILE", type=click.Path(path_type=Path), default="report.html", show_default=True)
@click.option("--engine", metavar="E", help="Only the patches of this engine, such as sglang.")
@click.option("--versions", metavar="SPEC", default="", help="Releases of the matrix. See docs/matrix.md.")
@click.option("--matrix", "cells_file", metavar="FILE", type=click.Path(path_type=Path), help="Cells made before.")
@click.option("--as-of", metavar="DATE", type=click.DateTime(["%Y-%m-%d"]), help="The day that ages are counted to.")
@click.option("--offline", is_flag=True, help="Only what is in the cache; ask nobody.")
def command(
    screen: Screen,
    found: Catalog,
    out: Path,
    engine: str | None,
    versions: str,
    cells_file: Path | None,
    as_of: datetime | None,
    offline: bool,
) -> int:
    """Write one page: targets and pins, the matrix with its reasons, every patch with its evidence and its age."""
    from graftwork import __version__
    from graftwork.upstream.matrix_cells import load_cells
    from graftwork.upstream.report import gather, report

    writing.check(out)
    wanted = Wanted(found, engine, None, (), versions)
    if cells_file is not None:
        cells = load_cells(cells_file)
    else:
        cells = [cell for made in matrices(wanted, screen, offline=offline) for cell in made.cells]
    day = (as_of or datetime.now(timezone.utc)).date()
    facts = gather(found, wanted.patches, cells, day)
    writing.write(out, report(facts, f"graftwork {__version__} report").encode("utf-8"))
    screen.step("written", str(out))
    if screen.as_json:
        collisions = sum(len(patch.upstream.collisions) for patch in facts.patches)
        screen.document(
            {
                "file": str(out),
                "as_of": day.isoformat(),
                "targets": [target.name for target in facts.targets],
                "patches": [patch.id for patch in facts.patches],
                "cells": len(facts.cells),
                "collisions": collisions,
            }
        )
    screen.result(f"{out}: {len(facts.targets)} targets, {len(facts.patches)} patches, {len(facts.cells)} cells")
    return 0
