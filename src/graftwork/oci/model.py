"""The OCI image-spec's JSON documents (v1.1): descriptor, manifest, index, configuration."""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

import msgspec

from graftwork.errors import UsageError
from graftwork.names import Digest
from graftwork.oci.canonical import canonical_json

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER_GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
REF_NAME = "org.opencontainers.image.ref.name"

_T = TypeVar("_T")


class Platform(msgspec.Struct, frozen=True, omit_defaults=True):
    """``linux/amd64``, with a variant such as ``v8`` for some architectures."""

    architecture: str
    os: str
    variant: str = ""

    @classmethod
    def parse(cls, text: str) -> Platform:
        """From ``os/architecture[/variant]``; UsageError otherwise."""
        parts = text.split("/")
        if len(parts) not in (2, 3) or not all(parts):
            raise UsageError(f"not a platform: {text!r}", hint="Write it as os/architecture, such as linux/amd64.")
        return cls(architecture=parts[1], os=parts[0], variant=parts[2] if len(parts) == 3 else "")

    def __str__(self) -> str:
        return "/".join(filter(None, (self.os, self.architecture, self.variant)))


class Descriptor(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A reference to a blob: what it is, its digest and its size in bytes."""

    media_type: str
    digest: str
    size: int
    annotations: dict[str, str] = {}
    platform: Platform | None = None


class Manifest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One image of one platform. The lowest layer comes first."""

    schema_version: int
    config: Descriptor
    layers: list[Descriptor]
    media_type: str = ""
    annotations: dict[str, str] = {}


class Index(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A list of manifests: of a layout's names, or of one image's platforms."""

    schema_version: int
    manifests: list[Descriptor]
    media_type: str = ""
    annotations: dict[str, str] = {}


class History(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a layer came about; one with ``empty_layer`` has none."""

    created: str = ""
    created_by: str = ""
    comment: str = ""
    empty_layer: bool = False


class RootFS(msgspec.Struct, frozen=True):
    """The sha256 of each layer's tar before compression, lowest first."""

    diff_ids: list[str]
    type: str = "layers"


class RunConfig(msgspec.Struct, frozen=True, rename="pascal", omit_defaults=True):
    """What a container is started with, as far as graftwork sets it. ``env`` holds NAME=value."""

    env: list[str] = []
    labels: dict[str, str] = {}


class ImageConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """The configuration of an image that graftwork makes. Keys of other makers are not kept here."""

    architecture: str
    os: str
    rootfs: RootFS
    variant: str = ""
    created: str = ""
    config: RunConfig = RunConfig()
    history: list[History] = []


def describe(data: bytes, media_type: str, **fields: Any) -> Descriptor:
    """The descriptor of *data*."""
    return Descriptor(media_type, sha256_digest(data), len(data), **fields)


def sha256_digest(data: bytes) -> Digest:
    """``sha256:`` and the hex digest of *data*."""
    return Digest("sha256:" + hashlib.sha256(data).hexdigest())


def encode(document: msgspec.Struct) -> bytes:
    """The bytes to store and to hash."""
    return canonical_json(document)


def decode(data: bytes, kind: type[_T], where: str) -> _T:
    """Read a document, checked against its type; UsageError naming *where* it came from."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{where} is not a valid {kind.__name__.lower()}: {error}") from error
