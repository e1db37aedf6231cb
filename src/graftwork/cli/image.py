"""``graftwork image TARGET``: the payload, and on a base that is at hand the grafted image."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from graftwork.catalog.catalog import Catalog
from graftwork.catalog.targets import Target
from graftwork.cli import options
from graftwork.cli.wish import Wish
from graftwork.ui import Screen


def wish_options(function: Callable[..., int]) -> Callable[..., int]:
    """Options of a build on a base; *function* is given them as keywords of a Wish."""
    for option in (
        click.option(
            "--key", type=click.Path(path_type=Path), help="Sign with this key (cosign's PEM; COSIGN_PASSWORD)."
        ),
        click.option("--attest/--no-attest", default=True, help="Write and attach SBOM and provenance (the default)."),
        click.option("--insecure", is_flag=True, help="Plain HTTP to a registry that is not on this machine."),
        click.option("--max-bytes", type=int, metavar="N", help="The most bytes that may be moved in all."),
        click.option("--platform", "platforms", multiple=True, help="Of an index: os/arch, several times, or 'all'."),
        click.option(
            "--dist", type=click.Path(path_type=Path), help="Where images go; dist/ in the catalog otherwise."
        ),
        click.option(
            "--base", metavar="REF", help="Registry reference, oci:DIR[:TAG], docker-archive:FILE or docker:IMAGE."
        ),
    ):
        function = option(function)
    return function


@click.command("image")
@options.common
@wish_options
@click.option(
    "--to",
    multiple=True,
    metavar="REF",
    help="Where to: oci:DIR[:TAG], docker-archive:FILE, docker:NAME, or a registry.",
)
@click.option("--full", is_flag=True, help="An oci: destination holds the base's layers too.")
@click.option("--require-base", is_flag=True, help="Exit 6 where the target's base is not at hand.")
@click.option(
    "--dockerfile",
    is_flag=True,
    help="Write files for BuildKit and other builders too.",
)
def command(
    screen: Screen,
    found: Catalog,
    wanted: Target,
    to: tuple[str, ...],
    full: bool,
    require_base: bool,
    dockerfile: bool,
    **rest: Any,
) -> int:
    """Build dist/TARGET/oci, the payload, and prove it; on a base, graft it there too."""
    from graftwork.cli.building import run

    wish = Wish(to=to, full=full, require_base=require_base or bool(to), **rest)
    document = run(found, wanted, wish, screen)
    if dockerfile:
        from graftwork.images.dockerfile import write
        from graftwork.images.record import parse_record

        folder = (wish.dist or found.root / "dist") / wanted.name
        record = parse_record((folder / "record.json").read_bytes(), str(folder / "record.json"))
        for file in write(wanted, record, wish.base, folder):
            screen.step("wrote", str(file))
    if screen.as_json:
        screen.document(document)
    return 0
