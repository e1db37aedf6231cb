"""``graftwork verify TARGET``: read a finished folder or image and prove it against the catalog and its record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from graftwork.catalog.catalog import Catalog
from graftwork.catalog.targets import Target
from graftwork.cli import options
from graftwork.errors import GraftworkError, PinError, ProofError, StateError, UsageError
from graftwork.ui import Screen

if TYPE_CHECKING:
    from graftwork.images.prove import Report


@click.command("verify")
@options.common
@options.tree_option()
@click.option("--image", metavar="oci:DIR[:TAG]", help="A built image layout; without it or --tree, dist/TARGET/oci.")
@options.engine_option
def command(
    target: str,
    catalog: Path | None,
    as_json: bool,
    quiet: bool,
    folder: Path | None,
    image: str | None,
    engine_version: str | None,
) -> int:
    """Prove hashes, markers and bytecode of a patched folder or of a payload image."""
    screen = Screen(as_json=as_json, quiet=quiet)
    if folder is not None and image is not None:
        raise click.UsageError("--tree and --image are two artifacts; give one")
    found, wanted = options.setup(catalog, target)
    proof = _tree(found, wanted, folder, engine_version, screen) if folder else _image(found, wanted, image)
    if as_json and proof.proved:
        screen.document({"target": target, "subject": proof.subject, "digest": proof.digest, "proved": True})
    proof.demand()
    for file in proof.record.files:
        screen.step("proved", f"{file.path} {file.sha256[:12]}")
    for marker in proof.record.markers:
        screen.step("marker", f"{marker.value} in {marker.function}")
    screen.result(f"proved: {proof.subject} holds {target}")
    return 0


def _tree(found: Catalog, target: Target, folder: Path, version: str | None, screen: Screen) -> Report:
    """The catalog must find every patch applied; hashes come from the record of the apply, if there is one."""
    from graftwork.images.from_plan import tree_record
    from graftwork.images.prove import prove_tree
    from graftwork.images.record import parse_record
    from graftwork.oci.canonical import readable_json
    from graftwork.patching import pycache
    from graftwork.patching.plan import plan
    from graftwork.patching.transaction import Store
    from graftwork.trees.folder import open_folder

    tree = open_folder(folder, target.engine)
    store = Store(tree)
    if store.interrupted:
        raise StateError(
            f"{tree.root}: an apply or revert was interrupted", hint=f"graftwork apply {target.name} --tree {folder}"
        )
    planned = plan(tree, found.patches(target), options.engine_of(target, tree, version), target.optional)
    refusal: GraftworkError | None = planned.refusal()
    if refusal is not None:
        for item in planned.patches:
            for reason in (*item.reasons, *item.problems):
                screen.line(f"  {item.patch.id}: {reason}")
        raise refusal
    if planned.pending:
        names = ", ".join(item.patch.id for item in planned.pending)
        raise ProofError(
            f"{tree.root}: not in the tree: {names}", hint=f"graftwork apply {target.name} --tree {folder}"
        )
    kept = store.record()
    if kept and kept["target"] == target.name:
        record = parse_record(readable_json(kept["record"]), f"{store.applied}")
    else:
        screen.line("no record of an apply in this tree: hashes are not compared, everything else is")
        minor = next((m for c in planned.patched if (m := pycache.minor_of(tree.root / c.path))), None)
        record = tree_record(target, planned, None, minor)
    return prove_tree(record, tree.root)


def _image(found: Catalog, target: Target, image: str | None) -> Report:
    from graftwork.images.prove import prove_layer

    layout, tag = found.root / "dist" / target.name / "oci", target.name
    if image is not None:
        kind, _, rest = image.partition(":")
        if kind != "oci" or not rest:
            raise UsageError(f"--image {image}: not oci:DIR or oci:DIR:TAG", hint="verify reads image layouts")
        place, colon, name = rest.rpartition(":")
        layout, tag = (Path(place), name) if colon and "/" not in name else (Path(rest), target.name)
    proof = prove_layer(layout, tag)
    if proof.record.target != target.name:
        raise PinError(f"{layout}: holds target {proof.record.target}, not {target.name}")
    _expected(found, target, proof)
    return proof


def _expected(found: Catalog, target: Target, proof: Report) -> None:
    """An image made for an older catalog is not this target: patches and revisions must be the same."""
    want = [(patch.id, patch.spec.revision) for patch in found.patches(target)]
    have = [(patch.id, patch.revision) for patch in proof.record.patches]
    if want != have:
        raise ProofError(
            f"{proof.subject}: holds {_labels(have)}, the target wants {_labels(want)}",
            hint=f"graftwork image {target.name}",
        )


def _labels(patches: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {revision}" for name, revision in patches) or "no patches"
