"""``graftwork mirror FROM TO``: copy a base once to the registry that images are pushed to."""

from __future__ import annotations

import hashlib

import click

from graftwork.cli.screened import screened
from graftwork.ui import Screen, size


@click.command("mirror")
@screened
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--insecure", is_flag=True, help="Plain HTTP to a registry that is not on this machine.")
@click.option("--max-bytes", type=int, metavar="N", help="The most bytes that may be moved, in and out together.")
def command(screen: Screen, source: str, target: str, insecure: bool, max_bytes: int | None) -> int:
    """Copy an image, all platforms, byte for byte. A run that was cut goes on where it was."""
    import msgspec

    from graftwork.images.mirror import mirror
    from graftwork.oci.reference import ImageRef
    from graftwork.oci.registry import Registry
    from graftwork.oci.traffic import Traffic
    from graftwork.oci.transport import Transport
    from graftwork.trees.cache import cache_folder

    here, there, traffic = ImageRef.parse(source), ImageRef.parse(target), Traffic(max_bytes=max_bytes)
    state = cache_folder() / "mirrors" / f"{hashlib.sha256(f'{here} {there}'.encode()).hexdigest()}.json"
    state.parent.mkdir(parents=True, exist_ok=True)
    with (
        Registry(Transport(here.registry, traffic=traffic, insecure=insecure)) as reading,
        Registry(Transport(there.registry, traffic=traffic, insecure=insecure)) as writing,
        screen.download(str(there)) as progress,
    ):
        done = mirror(
            reading, here, writing, there, progress=lambda digest, count, total: progress(count, total), state=state
        )
    screen.step(
        "copied", f"{done.copied} blobs ({size(done.moved)}), {done.present} were there, {done.mounted} mounted"
    )
    if screen.as_json:
        screen.document({"from": str(here), "to": str(there), **msgspec.to_builtins(done)})
    screen.result(f"{done.digest}  {there}")
    return 0
