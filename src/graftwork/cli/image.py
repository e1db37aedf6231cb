"""``graftwork image TARGET``: the payload image, written and then proved from what was written."""

from __future__ import annotations

import time
from pathlib import Path

import click

from graftwork.cli import options
from graftwork.errors import GraftworkError
from graftwork.ui import Screen, size


@click.command("image")
@options.common
@click.option("--dist", type=click.Path(path_type=Path), help="Where images go; dist/ in the catalog if not given.")
def command(target: str, catalog: Path | None, as_json: bool, quiet: bool, dist: Path | None) -> int:
    """Build dist/TARGET/oci, an OCI image layout with one layer, and prove it."""
    from graftwork.images.from_plan import payload_spec
    from graftwork.images.payload import build_payload
    from graftwork.images.prove import prove_layer
    from graftwork.images.record import plain
    from graftwork.patching import report
    from graftwork.patching.plan import plan

    began = time.monotonic()
    screen = Screen(as_json=as_json, quiet=quiet)
    found, wanted = options.setup(catalog, target)
    screen.step("target", f"{target}: {wanted.engine} {wanted.version} on {wanted.platform} {wanted.accelerator}")
    patches, lock = found.patches(wanted), found.lock(wanted)
    with options.pinned_wheel(wanted, lock, screen) as tree:
        planned = plan(tree, patches, options.engine_of(wanted, None, None), wanted.optional)
    report.show(planned, screen)
    refusal = planned.refusal()
    if refusal is not None:
        raise refusal
    folder = dist or found.root / "dist"
    before = _digest(folder / target / "oci", target)
    payload = build_payload(payload_spec(wanted, planned, lock), folder)
    screen.step("layer", f"{len(payload.record.files)} files, {size(payload.layer.size)}, {payload.layer.digest}")
    proof = prove_layer(payload.layout, target, payload.record).demand()
    screen.step("proved", f"{len(proof.record.files)} files, {len(proof.record.markers)} markers, bytecode, record")
    for line in _launch(payload.record.launch.args, payload.record.launch.env):
        screen.step("launch", line)
    same = "unchanged" if before == payload.digest else "new" if before is None else f"was {before}"
    screen.step("base", f"none grafted; meant for {wanted.base.image}@{wanted.base.digest[:19]}...")
    screen.step("image", f"{payload.layout} ({same})")
    screen.result(f"{payload.digest}  {target}  {time.monotonic() - began:.1f} s")
    if as_json:
        screen.document(
            {
                "target": target,
                "digest": payload.digest,
                "layer": payload.layer.digest,
                "layout": str(payload.layout),
                "record": plain(payload.record),
                "unchanged": same == "unchanged",
            }
        )
    return 0


def _digest(layout: Path, name: str) -> str | None:
    """The digest of the image that is there; one that cannot be read is as good as none, it will be replaced."""
    from graftwork.oci.layout import read_layout

    try:
        return read_layout(layout, name).descriptor.digest
    except GraftworkError:
        return None


def _launch(args: list[str], env: dict[str, str]) -> list[str]:
    import shlex

    words = [f"{key}={shlex.quote(value)}" for key, value in sorted(env.items())] + [shlex.quote(arg) for arg in args]
    return [f"must be run with {' '.join(words)}"] if words else []
