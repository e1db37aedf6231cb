"""Sending a grafted image somewhere: a registry by mounts, a layout, an archive. Base bytes move only if asked."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from graftwork.errors import PolicyError
from graftwork.images.graft import Grafted
from graftwork.oci.blobs import Blobs
from graftwork.oci.families import Document
from graftwork.oci.model import Descriptor, Platform, sha256_digest
from graftwork.oci.wire import OpenAt
from graftwork.ui import size

if TYPE_CHECKING:
    from graftwork.images.sources import Source
    from graftwork.oci.reference import ImageRef
    from graftwork.oci.registry import Registry

_AT_ONCE = 8
_ANSWERS = 1 << 16  # bytes


class Attachments(Protocol):
    """What is attached to a pushed image: its blobs first, with those of the image, then manifests about it."""

    def blobs(self, ref: ImageRef) -> Sequence[bytes]: ...
    def attach(self, registry: Registry, ref: ImageRef) -> None: ...


@dataclass(frozen=True)
class Image:
    """One platform's grafted image, and the payload's bytes: *blob* as it is stored, *tar* within it."""

    platform: Platform
    grafted: Grafted
    blob: bytes
    tar: bytes

    @property
    def base_layers(self) -> list[Descriptor]:
        return [layer for layer in self.grafted.manifest.layers if layer.digest != self.grafted.payload.digest]


@dataclass(frozen=True)
class Bundle:
    """What is shipped as one: an image, or an index of images. *top* is what the tag will name."""

    images: Sequence[Image]
    top: Document


@dataclass
class Shipment:
    """What a push did: mounted and copied base layers, and the copied bytes."""

    digest: str
    mounted: int = 0
    present: int = 0
    copied: int = 0
    copied_bytes: int = 0
    notes: list[str] = field(default_factory=list)


def bundle(images: Sequence[Image], index: Document | None) -> Bundle:
    """One image by itself; several as the base's *index* rewritten, each platform in its old place."""
    if index is None or len(images) == 1:
        return Bundle(images, images[0].grafted.manifest)
    by_platform = {str(image.platform): image.grafted.manifest for image in images}
    rows = []
    for item in index.data["manifests"]:
        where = item.get("platform") or {}
        name = "/".join(filter(None, (where.get("os"), where.get("architecture"), where.get("variant"))))
        new = by_platform.get(name)
        if new is not None:
            rows.append({**item, "mediaType": new.media_type, "digest": new.digest, "size": len(new.raw)})
    return Bundle(images, index.rewritten(manifests=rows))


def push(
    bundled: Bundle,
    source: Source,
    registry: Registry,
    ref: ImageRef,
    *,
    copy_limit: int | None,
    more: Attachments | None = None,
) -> Shipment:
    """Write the image to *ref*: blobs first, the tag last, so that a killed push leaves no broken tag.

    *more* is attached when the image is there by its digest and has no tag yet: it is there with the tag.
    Base layers are mounted from the source's repository. Those that the registry cannot mount have to be copied:
    PolicyError, with the bytes that it would take, if they are more than *copy_limit* (None: any is too much).
    """
    done = Shipment(bundled.top.digest)
    layers = {layer.digest: layer for image in bundled.images for layer in image.base_layers}
    missing = _mount_all(list(layers.values()), source, registry, ref, done)
    total = sum(layer.size for layer in missing)
    needed = _needed(bundled, source, registry, total)
    if missing and needed > (copy_limit or 0):
        why = f" ({done.notes[0]})" if done.notes else ""
        raise PolicyError(
            f"{ref.name} lacks {len(missing)} base layers and cannot mount them: "
            f"{total} bytes ({size(total)}) would have to be copied{why}; nothing was pushed",
            hint=f"allow it with --max-bytes {needed}, or copy the base there once: graftwork mirror",
        )
    for layer in missing:
        with _from(source, layer) as open_at:
            registry.push_blob(ref.repository, layer.digest, layer.size, open_at)
        done.copied, done.copied_bytes = done.copied + 1, done.copied_bytes + layer.size
    own = [data for image in bundled.images for data in (image.blob, image.grafted.config.raw)]
    _push_all([*own, *(more.blobs(ref) if more is not None else ())], registry, ref)
    for image in bundled.images:
        if bundled.top is not image.grafted.manifest:
            registry.put_manifest(ref.repository, image.grafted.manifest)
    if more is not None:
        registry.put_manifest(ref.repository, bundled.top)
        more.attach(registry, ref)
    registry.put_manifest(ref.repository, bundled.top, ref.tag)
    return done


def _push_all(small: Sequence[bytes], registry: Registry, ref: ImageRef) -> None:
    """Upload small blobs, several at once, each only once."""

    def one(data: bytes) -> None:
        registry.push_blob(ref.repository, sha256_digest(data), len(data), _bytes_from(data))

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(one, dict.fromkeys(small)))


def _needed(bundled: Bundle, source: Source, registry: Registry, total: int) -> int:
    """The budget for copying *total* bytes and pushing: what was spent, in and out, and some for short answers."""
    spent = registry.transport.traffic
    own = sum(
        len(image.blob) + len(image.grafted.config.raw) + len(image.grafted.manifest.raw) for image in bundled.images
    )
    ways = 1 if source.registry is None else 2
    return spent.bytes_in + spent.bytes_out + ways * total + own + len(bundled.top.raw) + _ANSWERS


def _mount_all(
    layers: Sequence[Descriptor], source: Source, registry: Registry, ref: ImageRef, done: Shipment
) -> list[Descriptor]:
    """Mount each layer, or find it there; returns those that are neither."""
    same = source.registry is not None and source.registry.host == registry.host
    if same and source.repository == ref.repository:
        done.present = len(layers)
        return []

    def one(layer: Descriptor) -> str:
        if same:
            mount = registry.mount(ref.repository, layer.digest, source.repository)
            if mount.mounted:
                return "mounted"
            if mount.reason and mount.reason not in done.notes:
                done.notes.append(mount.reason)
        return "present" if registry.find_blob(ref.repository, layer.digest) else "missing"

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(one, layers))
    done.mounted, done.present = answers.count("mounted"), answers.count("present")
    return [layer for layer, answer in zip(layers, answers, strict=True) if answer == "missing"]


def write_layout(bundled: Bundle, folder: Path, name: str, base: Blobs | None) -> int:
    """An OCI layout of the image: sparse, or with the base's layers where *base* is given; the bytes copied."""
    from graftwork.oci.layout import replace_layout

    small: dict[str, bytes] = {}
    for image in bundled.images:
        for data in (image.blob, image.grafted.config.raw, image.grafted.manifest.raw):
            small[sha256_digest(data)] = data
    small[bundled.top.digest] = bundled.top.raw
    layers = {layer.digest: layer for image in bundled.images for layer in image.base_layers}
    platform = bundled.images[0].platform if len(bundled.images) == 1 else None
    replace_layout(folder, name, bundled.top.descriptor(platform=platform), small, layers.values(), base)
    return sum(layer.size for layer in layers.values()) if base is not None else 0


@contextlib.contextmanager
def _from(source: Source, layer: Descriptor) -> Iterator[OpenAt]:
    """A reader of *layer* from any offset on, as uploads want it."""
    if source.registry is not None:
        from graftwork.oci.flow import Flow

        with contextlib.closing(Flow(source.registry, source.repository, layer)) as flow:
            yield flow.open_at
        return
    yield lambda start: _Ranges(source.blobs, layer, start) if start else source.blobs.open(layer.digest, layer.size)


def _bytes_from(data: bytes) -> OpenAt:
    return lambda start: io.BytesIO(data[start:])


class _Ranges:
    """A blob from an offset on, a range at a time."""

    def __init__(self, blobs: Blobs, layer: Descriptor, start: int) -> None:
        self._blobs, self._layer, self._at = blobs, layer, start

    def read(self, count: int, /) -> bytes:
        data = self._blobs.range(self._layer.digest, self._at, min(self._at + count, self._layer.size))
        self._at += len(data)
        return data

    def close(self) -> None:
        """Nothing is held open."""
