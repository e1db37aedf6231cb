"""``graftwork push TARGET --to REF``: build, graft, and write the image straight to a registry."""

from __future__ import annotations

from typing import Any

import click

from graftwork.catalog.catalog import Catalog
from graftwork.catalog.targets import Target
from graftwork.cli import options
from graftwork.cli.image import wish_options
from graftwork.cli.wish import Wish
from graftwork.ui import Screen


@click.command("push")
@options.common
@wish_options
@click.option("--to", required=True, metavar="REF", help="The reference to write: registry/repository:tag.")
def command(screen: Screen, found: Catalog, wanted: Target, to: str, **rest: Any) -> int:
    """Graft TARGET's payload onto its base (or --base) and push it. Base layers are mounted, not copied."""
    from graftwork.cli.building import run

    document = run(found, wanted, Wish(to=[to], require_base=True, **rest), screen)
    if screen.as_json:
        screen.document(document)
    return 0
