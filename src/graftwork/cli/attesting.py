"""SBOM, provenance and signatures of what was built: written beside it, attached to it where it was pushed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graftwork.catalog.catalog import Catalog
from graftwork.cli.wish import Wish
from graftwork.ui import Screen

if TYPE_CHECKING:
    from graftwork.images.attest import Documents
    from graftwork.images.build import Part
    from graftwork.images.payload import Payload
    from graftwork.images.ship import Bundle
    from graftwork.images.signature import PrivateKey
    from graftwork.images.sources import Source
    from graftwork.oci.reference import ImageRef
    from graftwork.oci.registry import Registry
    from graftwork.oci.traffic import Traffic
    from graftwork.patching.plan import Plan


def load_key(wish: Wish) -> PrivateKey | None:
    """The key to sign with, read before anything is built; its password is asked for on a terminal only."""
    if wish.key is None:
        return None
    import sys

    import click

    from graftwork.errors import UsageError
    from graftwork.images.signature import key_password, load_private_key

    def prompt() -> str:
        return str(click.prompt(f"password of {wish.key}", hide_input=True, default="", show_default=False, err=True))

    try:
        pem = wish.key.read_bytes()
    except OSError as error:
        raise UsageError(f"--key {wish.key}: {error.strerror}") from None
    return load_private_key(pem, str(wish.key), lambda: key_password(prompt if sys.stdin.isatty() else None))


def payload_documents(
    catalog: Catalog, payload: Payload, plan: Plan, wish: Wish, key: PrivateKey | None, screen: Screen
) -> list[str]:
    """Documents of a payload by itself, beside its layout."""
    if not wish.attest:
        return []
    from graftwork.images import attest
    from graftwork.images.provenance import catalog_inputs

    inputs = catalog_inputs(catalog, catalog.target(payload.record.target))
    found = attest.documents(payload.record, plan, inputs, payload.manifest, payload.layer.digest, base=None, key=key)
    return _written(attest.write(found, payload.record_file.parent), screen)


def image_documents(
    catalog: Catalog,
    parts: Sequence[Part],
    bundled: Bundle,
    source: Source,
    shipped: dict[str, Any],
    wish: Wish,
    key: PrivateKey | None,
    traffic: Traffic,
    screen: Screen,
) -> list[str]:
    """Documents of a grafted image: beside the payload, and in each registry that it was pushed to."""
    if not wish.attest and key is None:
        return []
    from graftwork.images import attest

    pushed = [item["to"] for item in shipped["written"] if "mounted" in item]
    folder = parts[-1].payload.record_file.parent
    said = {name: _documents(catalog, parts, name, key) if wish.attest else [] for name in pushed or [""]}
    written: list[Path] = []
    for part, found in zip(parts, next(iter(said.values())), strict=False):
        prefix = "" if len(parts) == 1 else f"{str(part.image.platform).replace('/', '-')}."
        written += attest.write(found, folder, prefix)
    for name in pushed:
        with _registry(name, source, wish, traffic) as (registry, ref):
            attached = sum(attest.attach(found, registry, ref.repository) for found in said[name])
            if attached:
                screen.step("attached", f"{attached} documents to {ref}: SBOM and provenance of each platform")
            for digest in dict.fromkeys([bundled.top.digest, *(p.image.grafted.manifest.digest for p in parts)]):
                if key is not None:
                    screen.step("signed", f"{ref.name}:{attest.sign(digest, registry, ref.repository, key)}")
    return _written(written, screen)


def _documents(catalog: Catalog, parts: Sequence[Part], name: str, key: PrivateKey | None) -> list[Documents]:
    """The documents of each platform's manifest, as the image is called *name*."""
    from graftwork.images import attest
    from graftwork.images.provenance import catalog_inputs
    from graftwork.images.record import Base

    inputs = catalog_inputs(catalog, catalog.target(parts[0].payload.record.target))
    return [
        attest.documents(
            part.payload.record,
            part.plan,
            inputs,
            part.image.grafted.manifest.descriptor(platform=part.image.platform),
            part.payload.layer.digest,
            base=Base(part.image.grafted.input_name, part.image.grafted.input_digest),
            name=name,
            key=key,
        )
        for part in parts
    ]


@contextlib.contextmanager
def _registry(name: str, source: Source, wish: Wish, traffic: Traffic) -> Iterator[tuple[Registry, ImageRef]]:
    """The registry of *name*: the source's connection where it is the same one."""
    from graftwork.oci.reference import ImageRef
    from graftwork.oci.registry import Registry
    from graftwork.oci.transport import Transport

    ref = ImageRef.parse(name)
    if source.registry is not None and source.registry.host == ref.registry:
        yield source.registry, ref
        return
    with Registry(Transport(ref.registry, traffic=traffic, insecure=wish.insecure)) as registry:
        yield registry, ref


def _written(files: Sequence[Path], screen: Screen) -> list[str]:
    if files:
        screen.step("said", f"{', '.join(file.name for file in files)} in {files[0].parent}")
    return [str(file) for file in files]
