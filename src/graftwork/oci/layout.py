"""OCI image layouts on disk (image-spec, image-layout): read with every digest verified, replaced at one instant."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from graftwork import names
from graftwork.errors import MissingFile, PinError, TreeError, UsageError
from graftwork.oci.blobs import Blobs
from graftwork.oci.canonical import canonical_json
from graftwork.oci.model import (
    INDEX,
    MANIFEST,
    REF_NAME,
    Descriptor,
    ImageConfig,
    Index,
    Manifest,
    Platform,
    decode,
    describe,
    encode,
    sha256_digest,
)

_VERSION = canonical_json({"imageLayoutVersion": "1.0.0"})
_DOCUMENT_LIMIT = 4 << 20  # bytes; what registries accept for a manifest (distribution-spec)
_TEMPORARY = ".graftwork-"


@dataclass(frozen=True)
class Image:
    """One image of a layout: its descriptor (with the digest that names it), manifest and configuration."""

    folder: Path
    descriptor: Descriptor
    manifest: Manifest
    config: ImageConfig

    def blob(self, descriptor: Descriptor) -> bytes:
        """The blob's bytes. PinError if its size or sha256 is not the descriptor's."""
        return _blob(self.folder, descriptor)


def read_layout(folder: Path, name: str) -> Image:
    """The image that *folder* holds under reference *name*.

    MissingFile without such a layout or name, UsageError for broken JSON or an image index, PinError where a blob
    is not what its descriptor says.
    """
    index = decode(_small(folder / "index.json"), Index, str(folder / "index.json"))
    found = [item for item in index.manifests if item.annotations.get(REF_NAME) == name]
    if not found:
        known = sorted(filter(None, (item.annotations.get(REF_NAME, "") for item in index.manifests)))
        raise MissingFile(f"{folder} holds no image named {name!r}; it holds: {', '.join(known) or 'none'}")
    if len(found) > 1:
        raise UsageError(f"{folder} holds {len(found)} images named {name!r}", hint="Remove all but one of them.")
    if found[0].media_type not in (MANIFEST, ""):
        raise UsageError(f"{folder}: {name!r} is a {found[0].media_type}, not an OCI image manifest")
    _bounded(found[0], f"the manifest of {name!r}")
    manifest = decode(_blob(folder, found[0]), Manifest, f"the manifest of {name!r} in {folder}")
    _bounded(manifest.config, f"the configuration of {name!r}")
    config = decode(_blob(folder, manifest.config), ImageConfig, f"the configuration of {name!r} in {folder}")
    return Image(folder, found[0], manifest, config)


def write_layout(folder: Path, name: str, manifest: Manifest, config: bytes, layers: Sequence[bytes]) -> Descriptor:
    """Make *folder* a layout of exactly this image; its manifest's descriptor.

    New blobs are added first, then ``index.json`` is replaced in one step, then unused blobs go. A run killed at any
    instant leaves the old image or the new one. Files that no layout has are left alone. TreeError if it cannot write.
    """
    data = encode(manifest)
    blobs: dict[str, bytes] = {sha256_digest(blob): blob for blob in (data, config, *layers)}
    needed = {manifest.config.digest, *(layer.digest for layer in manifest.layers)}
    if missing := needed - set(blobs):
        raise PinError(f"the manifest names blobs that were not given: {', '.join(sorted(missing))}")
    top = describe(data, MANIFEST, platform=_platform(config))
    return replace_layout(folder, name, top, blobs)


def replace_layout(
    folder: Path,
    name: str,
    top: Descriptor,
    blobs: Mapping[str, bytes],
    copied: Iterable[Descriptor] = (),
    source: Blobs | None = None,
) -> Descriptor:
    """Make *folder* a layout whose only name is *name*, for *top*, with *blobs* by digest.

    *copied* are streamed from *source* and verified; without a source they are left out: the layout is sparse.
    The same order as ``write_layout`` keeps the old image or the new one usable at any instant.
    """
    named = msgspec.structs.replace(top, annotations={**top.annotations, REF_NAME: name})
    store = folder / "blobs" / "sha256"
    keep = {digest.partition(":")[2] for digest in blobs}
    try:
        store.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            for digest, blob in blobs.items():
                replace_file(store / digest.partition(":")[2], blob)
            for layer in copied if source is not None else ():
                keep.add(layer.digest.partition(":")[2])
                _copy(source, layer, store)
            replace_file(folder / "oci-layout", _VERSION)
            replace_file(folder / "index.json", encode(Index(2, [named], INDEX)))
            _clean(store, keep)
            _clean(folder, {"oci-layout", "index.json", "blobs"}, only_temporary=True)
    except OSError as error:
        raise TreeError(
            f"cannot write the image layout {folder}: {error}", hint="Check its owner and space."
        ) from error
    return named


def _copy(source: Blobs | None, layer: Descriptor, store: Path) -> None:
    """Stream a blob into the layout, verified; one that is there already has been verified then."""
    path = store / layer.digest.partition(":")[2]
    if source is None or (path.is_file() and path.stat().st_size == layer.size):
        return
    found, count = hashlib.sha256(), 0
    handle, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=store)
    try:
        with os.fdopen(handle, "wb") as file, source.open(layer.digest, layer.size) as stream:
            while piece := stream.read(1 << 20):
                file.write(piece)
                found.update(piece)
                count += len(piece)
            os.fchmod(file.fileno(), 0o644)
        if (count, f"sha256:{found.hexdigest()}") != (layer.size, layer.digest):
            came = f"sha256:{found.hexdigest()} of {count} bytes"
            raise PinError(f"{source.origin}: blob {layer.digest} of {layer.size} bytes came as {came}")
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _platform(config: bytes) -> Platform:
    """The platform that a configuration is for."""
    found = decode(config, ImageConfig, "the image configuration")
    return Platform(architecture=found.architecture, os=found.os, variant=found.variant)


def replace_file(path: Path, data: bytes) -> None:
    """Write *path* in one step, world-readable, on disk before it gets its name. OSError as the system says.

    A file that holds just that already was written so, and is left.
    """
    if _holds(path, data):
        return
    handle, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _holds(path: Path, data: bytes) -> bool:
    try:
        found = path.lstat()
        same = stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o644 and found.st_size == len(data)
        return same and path.read_bytes() == data
    except OSError:
        return False  # then writing tells what is wrong


def _clean(folder: Path, keep: Iterable[str], *, only_temporary: bool = False) -> None:
    for path in folder.iterdir():
        if path.name not in keep and (path.name.startswith(_TEMPORARY) or not only_temporary) and path.is_file():
            path.unlink()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder against a second build: it would clear away blobs that this one has not named yet.

    A file beside it, because NFS locks nothing that is open for reading only, as a folder must be.
    """
    with (folder.parent / f".{folder.name}.lock").open("ab") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _bounded(descriptor: Descriptor, what: str) -> None:
    if not 0 <= descriptor.size <= _DOCUMENT_LIMIT:
        raise UsageError(f"{what} has {descriptor.size} bytes; the limit is {_DOCUMENT_LIMIT}")


def _small(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_DOCUMENT_LIMIT + 1)
    except FileNotFoundError as error:
        raise MissingFile(f"{path.parent} is not an OCI image layout: it has no {path.name}") from error
    except OSError as error:
        raise TreeError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > _DOCUMENT_LIMIT:
        raise UsageError(f"{path} is over {_DOCUMENT_LIMIT} bytes")
    return data


def _blob(folder: Path, descriptor: Descriptor) -> bytes:
    try:
        digest = names.digest(descriptor.digest)
    except ValueError as error:
        raise UsageError(f"{folder}: {error}") from error
    path = folder / "blobs" / "sha256" / digest.partition(":")[2]
    try:
        with path.open("rb") as file:
            data = file.read(descriptor.size + 1) if descriptor.size >= 0 else b""
    except FileNotFoundError as error:
        raise MissingFile(f"{folder} lacks the blob {digest}") from error
    except OSError as error:
        raise TreeError(f"cannot read {path}: {error.strerror}") from error
    if len(data) != descriptor.size:
        found = path.stat().st_size
        raise PinError(f"blob {digest} of {folder} has {found} bytes, its descriptor says {descriptor.size}")
    if sha256_digest(data) != digest:
        raise PinError(f"blob {digest} of {folder} holds other bytes: their digest is {sha256_digest(data)}")
    return data
