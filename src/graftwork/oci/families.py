"""The two families of image documents, OCI and Docker v2 schema 2, kept byte for byte until they are changed."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

import msgspec

from graftwork.errors import PinError, UsageError
from graftwork.names import Digest
from graftwork.oci.canonical import canonical_json
from graftwork.oci.errors import printable
from graftwork.oci.model import Descriptor, sha256_digest

DOCUMENT_LIMIT = 4 << 20  # bytes; what registries accept for a manifest (distribution-spec)


@dataclass(frozen=True)
class Family:
    """The media types of one family. ``layer_*`` are by compression."""

    name: str
    manifest: str
    index: str
    config: str
    layer_tar: str
    layer_gzip: str
    layer_zstd: str


_OCI = "application/vnd.oci.image"
_DOCKER = "application/vnd.docker"
OCI = Family(
    name="oci",
    manifest=f"{_OCI}.manifest.v1+json",
    index=f"{_OCI}.index.v1+json",
    config=f"{_OCI}.config.v1+json",
    layer_tar=f"{_OCI}.layer.v1.tar",
    layer_gzip=f"{_OCI}.layer.v1.tar+gzip",
    layer_zstd=f"{_OCI}.layer.v1.tar+zstd",
)
DOCKER = Family(
    name="docker",
    manifest=f"{_DOCKER}.distribution.manifest.v2+json",
    index=f"{_DOCKER}.distribution.manifest.list.v2+json",
    config=f"{_DOCKER}.container.image.v1+json",
    layer_tar=f"{_DOCKER}.image.rootfs.diff.tar",
    layer_gzip=f"{_DOCKER}.image.rootfs.diff.tar.gzip",
    # stereoscope#486: no specification has it, but builders push it.
    layer_zstd=f"{_DOCKER}.image.rootfs.diff.tar.zstd",
)
MANIFESTS = (OCI.manifest, DOCKER.manifest)
INDEXES = (OCI.index, DOCKER.index)
ACCEPT = ", ".join((*MANIFESTS, *INDEXES))
COMPRESSIONS = {
    media_type: compression
    for family in (OCI, DOCKER)
    for media_type, compression in (
        (family.layer_tar, "tar"),
        (family.layer_gzip, "gzip"),
        (family.layer_zstd, "zstd"),
    )
}
_SCHEMA_1 = (f"{_DOCKER}.distribution.manifest.v1+json", f"{_DOCKER}.distribution.manifest.v1+prettyjws")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_FOREIGN = (f"{_DOCKER}.image.rootfs.foreign.diff.tar", f"{_OCI}.layer.nondistributable.v1.tar")


@dataclass(frozen=True)
class Document:
    """A manifest, index or configuration as it was served: its bytes, and what they say.

    Nothing of ``data`` may be changed in place; ``rewritten`` makes a new document that keeps every unknown key.
    """

    raw: bytes
    data: dict[str, Any]
    media_type: str

    @property
    def digest(self) -> Digest:
        """The sha256 of the bytes."""
        return sha256_digest(self.raw)

    @property
    def family(self) -> Family:
        """The family of a manifest or index."""
        return DOCKER if self.media_type in (DOCKER.manifest, DOCKER.index) else OCI

    @property
    def is_index(self) -> bool:
        """Whether it lists manifests (of platforms) instead of layers."""
        return self.media_type in INDEXES

    @property
    def config(self) -> Descriptor:
        """A manifest's configuration."""
        return _descriptor(self.data.get("config"), "its configuration")

    @property
    def layers(self) -> list[Descriptor]:
        """A manifest's layers, lowest first."""
        return self._descriptors("layers", "layer")

    @property
    def manifests(self) -> list[Descriptor]:
        """An index's manifests."""
        return self._descriptors("manifests", "manifest")

    def rewritten(self, **changes: Any) -> Document:
        """The document with these top-level keys replaced, in canonical JSON; a value of None removes its key."""
        gone = {key for key, value in changes.items() if value is None}
        data = {key: value for key, value in {**self.data, **changes}.items() if key not in gone}
        return Document(canonical_json(data), data, self.media_type)

    def descriptor(self, **fields: Any) -> Descriptor:
        """What names this document in an index."""
        return Descriptor(self.media_type, self.digest, len(self.raw), **fields)

    def _descriptors(self, key: str, what: str) -> list[Descriptor]:
        items = self.data.get(key)
        if not isinstance(items, list):
            raise UsageError(f"the {self.media_type} {self.digest} has no list of {key}")
        return [_descriptor(item, f"{what} {number}") for number, item in enumerate(items)]


def read_manifest(raw: bytes, media_type: str, where: str) -> Document:
    """A manifest or index of either family. *media_type* is what it was served as, '' if unknown.

    UsageError for JSON that is broken or ambiguous, for schema 1, and where the types contradict each other.
    """
    data = _parse(raw, where)
    inner = data.get("mediaType", "")
    # 'Accept' is only a wish: some registries answer with schema 1 whatever is asked (ggcr#296).
    if media_type in _SCHEMA_1 or inner in _SCHEMA_1 or data.get("schemaVersion") == 1:
        hint = "Push the image again with a current tool; registries and engines no longer accept schema 1."
        raise UsageError(f"{where} is a Docker schema 1 manifest, which graftwork does not read", hint=hint)
    # CVE-2021-41190: a document that is both would be read as one thing here and as another elsewhere.
    if "manifests" in data and ("layers" in data or "config" in data):
        raise UsageError(f"{where} is a manifest and an index at once, which the OCI image-spec forbids")
    known = (*MANIFESTS, *INDEXES)
    if inner in known and media_type in known and inner != media_type:
        raise UsageError(f"{where} was served as {media_type}, but says of itself {inner}")
    shape = OCI.index if "manifests" in data else OCI.manifest if "layers" in data else ""
    found = next((kind for kind in (inner, media_type, shape) if kind in known), "")
    if not found or (found in INDEXES) != ("manifests" in data):
        said = inner or media_type or "nothing"
        raise UsageError(f"{where} is not an image manifest or index; it says to be {said}")
    return Document(raw, data, found)


def read_config(raw: bytes, media_type: str, where: str) -> Document:
    """An image configuration. UsageError for JSON that is broken or ambiguous."""
    return Document(raw, _parse(raw, where), media_type)


def check_layers(manifest: Document, where: str) -> None:
    """Refuse layers that are not of these families' images: UsageError."""
    refuse_foreign(manifest, where)
    for number, layer in enumerate(manifest.layers):
        if layer.media_type not in COMPRESSIONS:
            raise UsageError(f"{where}: layer {number} has an unknown type: {layer.media_type!r}")


def refuse_foreign(manifest: Document, where: str) -> None:
    """Refuse layers that a registry need not have: UsageError."""
    for number, layer in enumerate(manifest.layers):
        if layer.media_type.startswith(_FOREIGN):
            hint = "Such layers are not in the registry. Rebuild the base with distributable layers."
            raise UsageError(f"{where}: layer {number} is foreign ({layer.media_type})", hint=hint)


def check_bytes(raw: bytes, descriptor: Descriptor, where: str) -> bytes:
    """*raw*, if it has the size and digest that *descriptor* says; PinError otherwise."""
    if len(raw) != descriptor.size:
        raise PinError(f"{where}: {descriptor.digest} has {len(raw)} bytes, its descriptor says {descriptor.size}")
    return check_digest(raw, descriptor.digest, where)


def check_digest(raw: bytes, digest: str, where: str) -> bytes:
    """*raw*, if *digest* is its digest; PinError otherwise, UsageError if it is not a digest."""
    algorithm, _, expected = valid_digest(digest, where).partition(":")
    found = hashlib.new(algorithm, raw).hexdigest()
    if found != expected:
        raise PinError(f"{where}: the digest is {algorithm}:{found}, expected {digest}")
    return raw


def valid_digest(text: str, where: str) -> str:
    """*text*, if it is a digest of a registered algorithm (image-spec: sha256, sha512); UsageError otherwise."""
    if not _DIGEST.fullmatch(text):
        raise UsageError(f"{where}: not a digest that can be checked (sha256 or sha512): {printable(text)!r}")
    return text


def _parse(raw: bytes, where: str) -> dict[str, Any]:
    if len(raw) > DOCUMENT_LIMIT:
        raise UsageError(f"{where} has {len(raw)} bytes; the limit for a document is {DOCUMENT_LIMIT}")
    try:
        data = json.loads(raw, object_pairs_hook=_unique, parse_constant=_no_constant)
        canonical_json(data)  # what cannot be written again cannot be kept
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not a JSON document: {error}") from error
    if not isinstance(data, dict):
        raise UsageError(f"{where} is not a JSON object")
    return data


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [key for key, _ in pairs]
        twice = sorted({key for key in names if names.count(key) > 1})
        raise ValueError(f"keys that occur twice: {', '.join(twice)}")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _descriptor(value: Any, what: str) -> Descriptor:
    try:
        found = msgspec.convert(value, Descriptor)
    except msgspec.ValidationError as error:
        raise UsageError(f"the descriptor of {what} is not valid: {error}") from error
    if found.size < 0:
        raise UsageError(f"the descriptor of {what} has the size {found.size}")
    return found
