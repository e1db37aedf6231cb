"""Where a base comes from: a registry, an OCI layout or a docker-archive; each gives documents and blobs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from graftwork.errors import MissingFile, UsageError
from graftwork.images.graft import Base, usable_config
from graftwork.oci.blobs import Blobs, LayoutBlobs
from graftwork.oci.families import Document, check_bytes, read_config, read_manifest, refuse_foreign
from graftwork.oci.model import REF_NAME, Descriptor, Index, Platform, decode

if TYPE_CHECKING:
    from graftwork.oci.reference import ImageRef
    from graftwork.oci.registry import Registry
    from graftwork.oci.traffic import Traffic

# buildkit pushes attestations as manifests of this platform beside the real ones.
_NO_PLATFORM = "unknown"


@dataclass(frozen=True)
class Source:
    """An image or index that can be read. *registry* and *repository* are set where it is in a registry.

    *label* is its name in images made of it, without this machine's folders. *layers*: whether these can be read.
    """

    name: str
    top: Document
    blobs: Blobs
    manifest: Callable[[Descriptor], Document]
    registry: Registry | None = None
    repository: str = ""
    label: str = ""
    layers: bool = True

    def platforms(self) -> dict[str, Descriptor]:
        """``os/architecture[/variant]`` -> manifest, of an index; attestations are left out."""
        found = {}
        for item in self.top.manifests if self.top.is_index else ():
            if item.platform and item.platform.os != _NO_PLATFORM:
                found[str(item.platform)] = item
        return found

    def base(self, platform: Platform) -> Base:
        """The image for *platform*. UsageError, with what there is, if the source is for another one."""
        manifest = self.top
        if self.top.is_index:
            known = self.platforms()
            if str(platform) not in known:
                raise UsageError(f"{self.name} has no {platform}; it has: {', '.join(known) or 'no platform'}")
            manifest = self.manifest(known[str(platform)])
        refuse_foreign(manifest, self.name)
        config = manifest.config
        with self.blobs.open(config.digest, config.size) as stream:
            raw = check_bytes(stream.read(), config, f"the configuration of {self.name}")
        document = read_config(raw, config.media_type, f"the configuration of {self.name}")
        found = Base(self.name, manifest, usable_config(document, self.name), self.label or self.name)
        if (found.platform.os, found.platform.architecture) != (platform.os, platform.architecture):
            raise UsageError(f"{self.name} is for {found.platform}, asked for {platform}")
        return found


@contextlib.contextmanager
def open_source(text: str, traffic: Traffic, *, insecure: bool = False, impatient: bool = False) -> Iterator[Source]:
    """The image that *text* names: ``oci:DIR[:TAG]``, ``docker-archive:FILE``, or a registry reference.

    *impatient*: one quick try, for a base that nobody asked for by name.
    """
    kind, colon, rest = text.partition(":")
    if colon and kind == "oci":
        yield _layout(rest)
    elif colon and kind == "docker-archive":
        from graftwork.images.docker_archive import open_archive

        with open_archive(Path(rest)) as archive:
            label = f"docker-archive:{Path(rest).name}"
            yield Source(text, archive.manifest, archive, lambda _: archive.manifest, label=label)
    elif colon and kind == "docker":
        raise UsageError(f"{text}: an image in an engine will not do here", hint="name it by its registry or archive")
    else:
        from graftwork.oci.reference import ImageRef
        from graftwork.oci.registry import Registry
        from graftwork.oci.traffic import Patience
        from graftwork.oci.transport import Transport

        ref = ImageRef.parse(text)
        patience = Patience(tries=1, connect=4.0) if impatient else Patience()
        with Registry(Transport(ref.registry, traffic=traffic, insecure=insecure, patience=patience)) as registry:
            yield registry_source(registry, ref)


def registry_source(registry: Registry, ref: ImageRef) -> Source:
    """The image that *ref* names in *registry*. The digest decides where there is a tag too."""
    from graftwork.oci.registry import RepositoryBlobs

    top = registry.manifest(ref.repository, ref.reference)
    blobs = RepositoryBlobs(registry, ref.repository)

    def manifest(descriptor: Descriptor) -> Document:
        return registry.manifest(ref.repository, descriptor.digest)

    return Source(str(ref), top, blobs, manifest, registry, ref.repository)


def split_layout(text: str) -> tuple[Path, str | None]:
    """``DIR[:TAG]`` as folder and tag; a colon in a folder's name is kept if that folder exists."""
    folder, colon, tag = text.rpartition(":")
    if colon and "/" not in tag and not Path(text).is_dir():
        return Path(folder), tag
    return Path(text), None


def _layout(text: str) -> Source:
    folder, tag = split_layout(text)
    blobs = LayoutBlobs(folder)
    try:
        index = decode((folder / "index.json").read_bytes(), Index, str(folder / "index.json"))
    except OSError as error:
        raise MissingFile(f"{folder} is not an OCI image layout: {error.strerror}") from error
    found = [item for item in index.manifests if tag is None or item.annotations.get(REF_NAME) == tag]
    if len(found) != 1:
        known = sorted(item.annotations.get(REF_NAME, item.digest) for item in index.manifests)
        asked = f"named {tag!r}" if tag else "(no tag was given)"
        raise UsageError(f"{folder} holds {len(found)} images {asked}; it holds: {', '.join(known) or 'none'}")

    def manifest(descriptor: Descriptor) -> Document:
        with blobs.open(descriptor.digest, descriptor.size) as stream:
            raw = check_bytes(stream.read(), descriptor, f"{descriptor.digest} of {folder}")
        return read_manifest(raw, descriptor.media_type, f"{descriptor.digest} of {folder}")

    label = f"oci:{found[0].annotations.get(REF_NAME, '')}"
    return Source(f"oci:{text}", manifest(found[0]), blobs, manifest, label=label)
