"""The lock's index of a base: where each wanted path's bytes lie in which layer, and how to read them by range."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import msgspec

from graftwork.catalog.patches import Strict, Text
from graftwork.errors import UsageError

Digest = Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}$")]
Sha256Hex = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
Natural = Annotated[int, msgspec.Meta(ge=0)]


class IndexedLayer(Strict, frozen=True, kw_only=True):
    """A layer as the manifest names it; ``diff_id`` is the sha256 of its tar. ``size`` is bytes of the blob."""

    digest: Digest
    size: Natural
    media_type: Text
    diff_id: Digest


class AccessPoint(Strict, frozen=True, kw_only=True):
    """Where decompression of a layer can begin: byte ``offset``, bit ``bits`` of the blob is byte ``out`` of the tar.

    ``window`` is what a deflate block may refer to: up to 32 KiB of tar, zlib-compressed, in base64.
    """

    layer: Natural
    kind: Literal["plain", "member", "block", "stored", "frame"]
    offset: Natural
    out: Natural
    bits: Annotated[int, msgspec.Meta(ge=0, le=7)] = 0
    window: str = ""


class IndexedPath(Strict, frozen=True, kw_only=True, omit_defaults=True):
    """One path of the base. ``path`` is as asked for; ``real`` where it lies when links are followed, if elsewhere.

    A file has ``layer`` (position, 0 is the lowest), ``offset`` and ``size`` in that layer's tar, ``sha256``, and with
    ``point`` (position in ``points``) and ``end`` (byte of the blob, exclusive) a way to read it. An absent path has
    nothing else. ``xattrs`` are base64.
    """

    path: Text
    kind: Literal["file", "folder", "symlink", "other", "absent"]
    real: str = ""
    mode: Natural = 0
    uid: Natural = 0
    gid: Natural = 0
    mtime: int = 0
    link: str = ""
    xattrs: dict[str, str] = {}
    layer: Natural | None = None
    size: Natural = 0
    offset: Natural = 0
    sha256: Sha256Hex | None = None
    point: Natural | None = None
    end: Natural | None = None


class BaseIndex(Strict, frozen=True, kw_only=True):
    """What ``graftwork lock`` found in one platform's base. ``root`` is the folder above the engine package.

    ``manifest`` is the manifest's bytes in base64; their sha256 is ``manifest_digest``. ``listed`` is the names found
    in folders that hold bytecode or import hooks.
    """

    schema: Literal[1]
    image: Text
    digest: Digest
    manifest_digest: Digest
    manifest: Text
    config_digest: Digest
    python: Annotated[str, msgspec.Meta(pattern=r"^3\.\d+$")]
    root: Text
    layers: list[IndexedLayer]
    paths: list[IndexedPath]
    points: list[AccessPoint]
    listed: dict[str, list[str]] = {}
    notes: list[str] = []


def encode_index(index: BaseIndex) -> bytes:
    """The same JSON for the same index: sorted keys, sorted paths, a newline at the end."""
    ordered = msgspec.structs.replace(index, paths=sorted(index.paths, key=lambda item: item.path))
    plain = msgspec.to_builtins(ordered)
    return (json.dumps(plain, sort_keys=True, indent=1, ensure_ascii=True, allow_nan=False) + "\n").encode()


def decode_index(data: bytes, where: str) -> BaseIndex:
    """An index as it was written. UsageError naming *where*, and what is wrong."""
    try:
        index = msgspec.json.decode(data, type=BaseIndex)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{where}: not a base index: {error}", hint="Make it again: graftwork lock.") from error
    for path in index.paths:
        beyond = path.layer is not None and path.layer >= len(index.layers)
        if beyond or (path.point is not None and (path.point >= len(index.points) or path.end is None)):
            raise UsageError(f"{where}: {path.path} names a layer or point that is not there")
    for point in index.points:
        if point.layer >= len(index.layers):
            raise UsageError(f"{where}: an access point names layer {point.layer}, of {len(index.layers)}")
    return index
