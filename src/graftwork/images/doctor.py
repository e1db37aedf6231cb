"""What a registry does with mounts, ranges, chunks, referrers and deletes: tried out, with small blobs of our own."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from graftwork.errors import PinError, UnreachableError
from graftwork.oci.canonical import canonical_json
from graftwork.oci.challenge import push
from graftwork.oci.errors import RangesRefusedError, RegistryError
from graftwork.oci.families import OCI, Document
from graftwork.oci.model import Descriptor, sha256_digest
from graftwork.oci.registry import Registry
from graftwork.oci.upload import cancel
from graftwork.oci.wire import Body, CutError

_SIZE = 256 << 10  # bytes of a probe's blob
_MANY = 8 << 20  # bytes up to which a registry's least chunk is tried
_SUBJECT = "application/vnd.graftwork.probe"


@dataclass(frozen=True)
class Finding:
    """One thing that a registry can or cannot do, and how we know."""

    name: str
    verdict: Literal["yes", "no", "unclear"]
    detail: str


@dataclass(frozen=True)
class Examination:
    """What was found, and what could not be removed afterwards (references of manifests and blobs)."""

    registry: str
    findings: list[Finding]
    left: list[str]


def examine(registry: Registry, repository: str, *, second: str = "") -> Examination:
    """Try *registry* out. Pushes small blobs and manifests to *repository* and *second*, and removes what it can.

    *second* (by default ``<repository>-mount``) is where a mount is tried. AccessError, UnreachableError if nothing
    can be pushed to *repository* at all.
    """
    probe = _Probe(registry, repository, second or f"{repository}-mount")
    # Whatever this raises is the answer: without a push there is nothing to try.
    first = probe.push(os.urandom(_SIZE))
    tries: list[tuple[str, Callable[[], Finding]]] = [
        ("upload in one request", lambda: probe.way("request", "upload in one request")),
        ("upload as one stream", lambda: probe.way("stream", "upload as one stream")),
        ("upload in chunks", lambda: probe.way("chunks", "upload in chunks")),
        ("resume a cut chunk", probe.resume),
        ("ranged reads", lambda: probe.ranges(first)),
        ("mount across repositories", lambda: probe.mount(first)),
        ("HEAD of manifests", probe.head),
        ("referrers API", probe.referrers),
    ]
    findings = []
    try:
        for name, attempt in tries:
            try:
                findings.append(attempt())
            except (UnreachableError, PinError) as error:
                findings.append(Finding(name, _verdict(error), error.message))
    finally:
        deletes = probe.clean()
    return Examination(registry.host, [*findings, *deletes], probe.left)


def _verdict(error: UnreachableError | PinError) -> Literal["no", "unclear"]:
    """'unclear' where the registry was not reached, or was too busy to answer."""
    if isinstance(error, PinError):
        return "no"
    status = error.status if isinstance(error, RegistryError) else 0
    return "no" if 0 < status < 500 and status != 429 else "unclear"


@dataclass
class _Probe:
    registry: Registry
    repository: str
    second: str
    manifests: list[str] = field(default_factory=list)
    blobs: list[tuple[str, str]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def push(self, data: bytes) -> Descriptor:
        """Upload *data* in whichever way works."""
        digest = sha256_digest(data)
        self.registry.push_blob(self.repository, digest, len(data), _opener(data))
        self.blobs.append((self.repository, digest))
        return Descriptor(OCI.layer_tar, digest, len(data))

    def way(self, way: str, name: str) -> Finding:
        """Upload a blob in this way, and look whether it is what was sent."""
        size, chunk = _SIZE, _SIZE // 2
        least = self._least() if way == "chunks" else 0
        if least > _MANY:
            return Finding(name, "unclear", f"it wants chunks of at least {least:,} bytes, which was not tried")
        if least > chunk:
            size, chunk = 2 * least, least
        data = os.urandom(size)
        digest = sha256_digest(data)
        refused = self.registry.uploader.attempt(way, self.repository, digest, size, _opener(data), chunk=chunk)
        if refused:
            return Finding(name, "no", refused)
        self.blobs.append((self.repository, digest))
        found = self.registry.find_blob(self.repository, digest)
        said = f"{size:,} bytes" + (f" in chunks of {chunk:,}" if way == "chunks" else "")
        return Finding(name, "yes", said) if found else Finding(name, "no", "accepted, but the blob is not there")

    def resume(self) -> Finding:
        """Break off in the middle of a chunk, and ask what is stored."""
        name = "resume a cut chunk"
        transport, scopes = self.registry.transport, [push(self.repository)]
        target = f"/v2/{self.repository}/blobs/uploads/"
        started = transport.send("POST", target, what=name, scopes=scopes, ok=(202,))
        place = transport.absolute(started.headers.get("Location", ""), started.url)
        body = Body(lambda offset: _Half(), 0, _SIZE)
        headers = {"Content-Type": "application/octet-stream", "Content-Range": f"0-{_SIZE - 1}"}
        try:
            transport.send("PATCH", place, what=name, scopes=scopes, headers=headers, body=body, ok=(202,), retry=False)
        except (_StopError, CutError):
            status = transport.send("GET", place, what=name, scopes=scopes, ok=(200, 204, 202, 400, 404, 405, 416))
            stored = status.headers.get("Range", "")
            cancel(transport, self.repository, started)
            if status.status < 400 and stored not in ("", "0-0"):
                return Finding(name, "yes", f"it kept {stored} of 0-{_SIZE - 1}")
            kept = "nothing of it" if status.status < 400 else f"no upload ({status.status})"
            return Finding(
                name, "no", f"after a cut it has {kept}; an upload goes on from the last whole chunk, or anew"
            )
        return Finding(name, "unclear", "the registry answered before the chunk was there")

    def ranges(self, blob: Descriptor) -> Finding:
        """Read a part of a blob."""
        name = "ranged reads"
        try:
            part = self.registry.blob_range(self.repository, blob.digest, blob.size, 1000, 2000)
        except RangesRefusedError:
            return Finding(name, "no", "it answers with the whole blob")
        return Finding(name, "yes", f"206 with {len(part):,} bytes")

    def mount(self, blob: Descriptor) -> Finding:
        """Mount a blob in the second repository."""
        name = "mount across repositories"
        found = self.registry.mount(self.second, blob.digest, self.repository)
        if not found.mounted:
            return Finding(name, "no", found.reason)
        self.blobs.append((self.second, blob.digest))
        there = self.registry.find_blob(self.second, blob.digest)
        return Finding(name, "yes", f"to {self.second}") if there else Finding(name, "no", "accepted, but not done")

    def head(self) -> Finding:
        """Ask for a manifest without its bytes."""
        name = "HEAD of manifests"
        image = self._image()
        before = self.registry.transport.traffic.bytes_in
        found = self.registry.find_manifest(self.repository, image.digest)
        if found is None:
            return Finding(name, "no", "a manifest that was just pushed is not there")
        without = self.registry.transport.traffic.bytes_in == before
        return Finding(name, "yes" if without else "no", "with its digest" if without else "a GET was needed")

    def referrers(self) -> Finding:
        """Push a manifest with a subject, and ask what refers to the subject."""
        name = "referrers API"
        image = self._image()
        artifact = self._image(subject=image)
        target = f"/v2/{self.repository}/referrers/{image.digest}"
        # Not through 'referrers', which falls back to the tag schema.
        pages = list(self.registry.pages(target, self.repository, "the referrers of a probe"))
        listed = [
            item.get("digest") for page in pages for item in page.get("manifests") or () if isinstance(item, dict)
        ]
        if artifact.digest in listed:
            return Finding(name, "yes", "the list of a subject is kept by the registry")
        return Finding(name, "no", "it answers, but does not list what has a subject; tags are used instead")

    def clean(self) -> list[Finding]:
        """Remove everything; findings on both kinds of deletes."""
        kinds: list[tuple[str, Callable[[str, str], None], list[tuple[str, str]]]] = [
            (
                "delete manifests",
                self.registry.delete_manifest,
                [(self.repository, digest) for digest in reversed(self.manifests)],
            ),
            ("delete blobs", self.registry.delete_blob, self.blobs),
        ]
        findings = []
        for name, remove, things in kinds:
            reason = ""
            for repository, digest in things:
                try:
                    remove(repository, digest)
                except RegistryError as error:
                    reason = error.message
                    self.left.append(f"{self.registry.host}/{repository}@{digest}")
            if things:
                findings.append(Finding(name, "no" if reason else "yes", reason or f"{len(things)} removed"))
        return findings

    def _least(self) -> int:
        target = f"/v2/{self.repository}/blobs/uploads/"
        reply = self.registry.transport.send("POST", target, what="a probe", scopes=[push(self.repository)], ok=(202,))
        cancel(self.registry.transport, self.repository, reply)
        text = reply.headers.get("OCI-Chunk-Min-Length", "")
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0

    def _image(self, subject: Document | None = None) -> Document:
        """Push a small valid image, by digest only; with *subject* one that refers to it."""
        tar = _tar(os.urandom(1000))
        layer = self.push(gzip.compress(tar, mtime=0))
        diff_id = "sha256:" + hashlib.sha256(tar).hexdigest()
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        }
        raw = canonical_json(config)
        stored = self.push(raw)
        data = {
            "schemaVersion": 2,
            "mediaType": OCI.manifest,
            "config": {"mediaType": OCI.config, "digest": stored.digest, "size": stored.size},
            "layers": [{"mediaType": OCI.layer_gzip, "digest": layer.digest, "size": layer.size}],
        }
        if subject is not None:
            entry = {"mediaType": OCI.manifest, "digest": subject.digest, "size": len(subject.raw)}
            data |= {"artifactType": _SUBJECT, "subject": entry}
        document = Document(canonical_json(data), data, OCI.manifest)
        self.registry.put_manifest(self.repository, document)
        self.manifests.append(document.digest)
        return document


class _StopError(Exception):
    """Ends a body on purpose."""


class _Half:
    """A source that gives half of a probe's bytes and then breaks the request off."""

    def __init__(self) -> None:
        self._left = _SIZE // 2

    def read(self, size: int, /) -> bytes:
        if not self._left:
            raise _StopError
        data = bytes(min(size, self._left))
        self._left -= len(data)
        return data

    def close(self) -> None:
        return


def _tar(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo("probe")
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _opener(data: bytes) -> Callable[[int], io.BytesIO]:
    return lambda offset: io.BytesIO(data[offset:])
