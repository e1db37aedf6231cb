"""``graftwork push TARGET --to REF``: build, graft, and write the image straight to a registry."""

from __future__ import annotations

from pathlib import Path

import click

from graftwork.cli import options
from graftwork.cli.image import base_options
from graftwork.ui import Screen


@click.command("push")
@options.common
@base_options
@click.option("--to", required=True, metavar="REF", help="The reference to write: registry/repository:tag.")
def command(
    target: str,
    catalog: Path | None,
    as_json: bool,
    quiet: bool,
    dist: Path | None,
    base: str | None,
    platforms: tuple[str, ...],
    max_bytes: int | None,
    insecure: bool,
    attest: bool,
    key: Path | None,
    to: str,
) -> int:
    """Graft TARGET's payload onto its base (or --base) and push it. Base layers are mounted, not copied."""
    from graftwork.cli.building import run
    from graftwork.cli.wish import Wish

    screen = Screen(as_json=as_json, quiet=quiet)
    found, wanted = options.setup(catalog, target)
    wish = Wish(base, [to], platforms, False, True, max_bytes, insecure, dist, attest, key)
    document = run(found, wanted, wish, screen)
    if as_json:
        screen.document(document)
    return 0
