"""``graftwork probe PATH``: the device behind a storage tier's path, and whether direct I/O will work on it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from graftwork.cli.screened import screened
from graftwork.ui import Screen


@click.command("probe")
@screened
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--shards", type=click.IntRange(min=1), default=1, help="Shards that share the CPUs of this node.")
@click.option("--direct", type=click.Choice(["on", "off"]), help="What will be set in any case (GRAFTWORK_DIRECT_IO).")
def command(screen: Screen, paths: tuple[Path, ...], shards: int, direct: str | None) -> int:
    """Tell what a storage tier at PATH should use: direct or buffered I/O, and how many workers.

    The devices are found through bind mounts, overlays, loop devices, LVM and RAID; the worst one decides. Direct I/O
    is tried with one block that has no name. PATH need not exist yet.
    """
    from graftwork.launch.storage import probe

    verdicts = [probe(path, shards=shards, override=direct) for path in paths]
    if screen.as_json:
        screen.document({"paths": [asdict(verdict) for verdict in verdicts]})
    for verdict in verdicts:
        screen.result(f"{verdict.path}  {verdict.mode}  {verdict.workers} workers  {verdict.tier}")
        screen.line(f"  {verdict.reason}")
        for device in verdict.devices:
            screen.line(f"  {device.name}: {device.tier}" + (f", {device.detail}" if device.detail else ""))
    return 0
