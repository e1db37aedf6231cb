"""SBOM, provenance and signatures of what was built: written beside it, attached to it where it was pushed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from graftwork.catalog.catalog import Catalog
from graftwork.cli.wish import Wish
from graftwork.ui import Screen

if TYPE_CHECKING:
    from graftwork.images.attest import Documents
    from graftwork.images.build import Part
    from graftwork.images.payload import Payload
    from graftwork.images.ship import Bundle
    from graftwork.images.signature import PrivateKey
    from graftwork.oci.reference import ImageRef
    from graftwork.oci.registry import Registry
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

    inputs = catalog_inputs(catalog, payload.record.target, [item.patch for item in plan.patches])
    found = attest.documents(payload.record, plan, inputs, payload.manifest, payload.layer.digest, base=None, key=key)
    return _written(attest.write(found, payload.record_file.parent), screen)


class Attestor:
    """The documents of a grafted image: attached where it is pushed, written beside the payload."""

    def __init__(
        self,
        catalog: Catalog,
        parts: Sequence[Part],
        bundled: Bundle,
        wish: Wish,
        key: PrivateKey | None,
        screen: Screen,
    ) -> None:
        self._catalog, self._parts, self._bundled = catalog, parts, bundled
        self._wish, self._key, self._screen = wish, key, screen
        self._said: list[list[Documents]] = []

    @property
    def wanted(self) -> bool:
        return self._wish.attest or self._key is not None

    def blobs(self, ref: ImageRef) -> list[bytes]:
        """Make the documents for the image that is pushed as *ref*; what must be there before they are attached."""
        from graftwork.images import attest

        self._said.append(self._made(str(ref)))
        return [blob for found in self._said[-1] for blob in attest.blobs(found)]

    def attach(self, registry: Registry, ref: ImageRef) -> None:
        """Attach the documents to the image in *ref*'s repository, and sign it if there is a key."""
        from graftwork.images import attest

        attached = sum(attest.attach(found, registry, ref.repository) for found in self._said[-1])
        if attached:
            self._screen.step("attached", f"{attached} documents to {ref}: SBOM and provenance of each platform")
        for found in self._said[-1]:
            if tag := attest.store_signed(found, registry, ref.repository):
                self._screen.step("signed", f"{ref.name}:{tag}")
        manifests = [part.image.grafted.manifest.digest for part in self._parts]
        for digest in dict.fromkeys([self._bundled.top.digest, *manifests]):
            if self._key is not None:
                signature = attest.sign(digest, registry, ref.repository, self._key)
                self._screen.step("signed", f"{ref.name}:{signature}")

    def write(self) -> list[str]:
        """Write the documents beside the payload, by the first name that they were attached under; the files."""
        if not self.wanted:
            return []
        from graftwork.images import attest

        written: list[Path] = []
        made = self._said[0] if self._said else self._made("")
        for part, found in zip(self._parts, made, strict=False):
            prefix = "" if len(self._parts) == 1 else f"{str(part.image.platform).replace('/', '-')}."
            written += attest.write(found, part.payload.record_file.parent, prefix)
        return _written(written, self._screen)

    def _made(self, name: str) -> list[Documents]:
        return _documents(self._catalog, self._parts, name, self._key) if self._wish.attest else []


def _documents(catalog: Catalog, parts: Sequence[Part], name: str, key: PrivateKey | None) -> list[Documents]:
    """The documents of each platform's manifest, as the image is called *name*."""
    from graftwork.images import attest
    from graftwork.images.provenance import catalog_inputs
    from graftwork.images.record import Base

    patches = [item.patch for item in parts[0].plan.patches]
    inputs = catalog_inputs(catalog, parts[0].payload.record.target, patches)
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


def _written(files: Sequence[Path], screen: Screen) -> list[str]:
    if files:
        screen.step("said", f"{', '.join(file.name for file in files)} in {files[0].parent}")
    return [str(file) for file in files]
