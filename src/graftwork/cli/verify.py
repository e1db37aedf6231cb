"""``graftwork verify TARGET``: read a finished folder or image and prove it against the catalog and its record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graftwork.catalog.catalog import Catalog
from graftwork.catalog.targets import Target
from graftwork.cli import options
from graftwork.errors import GraftworkError, PinError, ProofError, StateError, UsageError
from graftwork.ui import Screen, size

if TYPE_CHECKING:
    from graftwork.images.prove import Report
    from graftwork.images.prove_image import View
    from graftwork.images.sources import Source


@dataclass(frozen=True)
class _Wish:
    """How an image is to be read."""

    deep: bool
    platform: str | None
    insecure: bool
    max_bytes: int | None
    key: Path | None


@click.command("verify")
@options.common
@options.tree_option()
@click.option("--image", metavar="REF", help="Registry reference, oci:DIR[:TAG], docker-archive:FILE or docker:IMAGE.")
@click.option("--key", type=click.Path(path_type=Path), help="Public key: the image's signature is verified too.")
@click.option("--deep", is_flag=True, help="Open every layer of an image, to list folders completely.")
@click.option("--platform", metavar="OS/ARCH", help="Of an index; the target's own if not given.")
@click.option("--insecure", is_flag=True, help="Plain HTTP to a registry that is not on this machine.")
@click.option("--max-bytes", type=int, metavar="N", help="The most bytes that may be moved in all.")
@options.engine_option
def command(
    screen: Screen,
    found: Catalog,
    wanted: Target,
    folder: Path | None,
    image: str | None,
    deep: bool,
    platform: str | None,
    insecure: bool,
    max_bytes: int | None,
    key: Path | None,
    engine_version: str | None,
) -> int:
    """Prove hashes, markers and bytecode of a patched folder, a payload, or a whole image, without running it."""
    if folder is not None and image is not None:
        raise click.UsageError("--tree and --image are two artifacts; give one")
    if folder:
        proof = _tree(found, wanted, folder, engine_version, screen)
    else:
        proof = _image(found, wanted, image, _Wish(deep, platform, insecure, max_bytes, key), screen)
        _expected(found, wanted, proof)
    if screen.as_json and proof.proved:
        screen.document({"target": wanted.name, "subject": proof.subject, "digest": proof.digest, "proved": True})
    proof.demand()
    for file in proof.record.files:
        screen.step("proved", f"{file.path} {file.sha256[:12]}")
    for marker in proof.record.markers:
        screen.step("marker", f"{marker.value} in {marker.function}")
    screen.result(f"proved: {proof.subject} holds {wanted.name}")
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


def _image(found: Catalog, target: Target, image: str | None, wish: _Wish, screen: Screen) -> Report:
    """A payload layout by itself, or a whole image from wherever it is."""
    from graftwork.images.sources import open_source
    from graftwork.oci.traffic import Traffic

    if image is None:
        return _payload(found.root / "dist" / target.name / "oci", target.name)
    if image.startswith("docker:"):
        from graftwork.images.engine import EngineView, connected, engine_source

        name = image.removeprefix("docker:")
        with connected() as client, EngineView(client, name) as view:
            return _whole(engine_source(client, name), view, target, wish, screen)
    traffic = Traffic(max_bytes=wish.max_bytes)
    with open_source(image, traffic, insecure=wish.insecure) as source:
        proof = _whole(source, None, target, wish, screen)
        if wish.key is not None:
            _signature(source, proof.digest, wish.key, screen)
    if traffic.requests:
        screen.step("moved", f"{size(traffic.bytes_in)} in, {traffic.requests} requests")
    return proof


def _whole(source: Source, view: View | None, target: Target, wish: _Wish, screen: Screen) -> Report:
    from graftwork.images.graft import PAYLOAD
    from graftwork.images.prove_image import merged_view, original_of, prove_image
    from graftwork.images.sources import split_layout
    from graftwork.oci.model import Platform

    base = source.base(Platform.parse(wish.platform or f"linux/{target.base.arch}"))
    labels = (base.config.data.get("config") or {}).get("Labels") or {}
    if PAYLOAD not in labels and len(base.manifest.layers) == 1 and source.name.startswith("oci:"):
        folder, tag = split_layout(source.name.removeprefix("oci:"))
        return _payload(folder, tag or target.name)
    original, why_not = original_of(base, source)
    if why_not:
        screen.line(why_not)
    if not wish.deep and view is None:
        screen.line("lower layers were not opened to list folders; --deep does that")
    deep, interpreter = wish.deep, target.base.interpreter
    files = view or merged_view(base, source)
    return prove_image(base, files, target.name, original, deep=deep, interpreter=interpreter)


def _signature(source: Source, manifest: str, file: Path, screen: Screen) -> None:
    """ProofError unless the key signed the image, or the index that it is in, and the provenance of *manifest*.

    Provenance that nobody signed is no error, and is said.
    """
    from graftwork.images import attest
    from graftwork.images.signature import load_public_key

    if source.registry is None:
        raise UsageError("--key needs an image in a registry: signatures are kept there")
    try:
        pem = file.read_bytes()
    except OSError as error:
        raise UsageError(f"--key {file}: {error.strerror}") from None
    key = load_public_key(pem, str(file))
    attest.verify(source.top.digest, source.registry, source.repository, key)
    screen.step("signed", f"{source.top.digest} by {file}")
    if attest.verify_signed(manifest, source.registry, source.repository, key):
        screen.step("signed", f"provenance of {manifest} by {file}")
    else:
        screen.line(f"there is no signed provenance of {manifest}: it was pushed with --no-attest, or by another tool")


def _payload(layout: Path, tag: str) -> Report:
    from graftwork.images.prove import prove_layer

    return prove_layer(layout, tag)


def _expected(found: Catalog, target: Target, proof: Report) -> None:
    """An image of another target, or made for an older catalog, is not this target: revisions must be the same."""
    if proof.record.target != target.name:
        raise PinError(f"{proof.subject}: holds target {proof.record.target}, not {target.name}")
    want = [(patch.id, patch.spec.revision) for patch in found.patches(target)]
    have = [(patch.id, patch.revision) for patch in proof.record.patches]
    if want != have:
        raise ProofError(
            f"{proof.subject}: holds {_labels(have)}, the target wants {_labels(want)}",
            hint=f"graftwork image {target.name}",
        )


def _labels(patches: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {revision}" for name, revision in patches) or "no patches"
