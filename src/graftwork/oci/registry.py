"""A client for one registry: manifests, blobs, tags, mounts (OCI distribution-spec 1.1)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

from graftwork.errors import PinError, UsageError
from graftwork.oci.challenge import delete, pull, push
from graftwork.oci.errors import RegistryError
from graftwork.oci.families import (
    ACCEPT,
    DOCUMENT_LIMIT,
    Document,
    check_bytes,
    check_digest,
    read_manifest,
    valid_digest,
)
from graftwork.oci.model import Descriptor
from graftwork.oci.stream import BlobStream
from graftwork.oci.transport import Transport
from graftwork.oci.upload import Progress, Uploader, cancel
from graftwork.oci.wire import OpenAt, Reply

_NEXT = re.compile(r'<([^>]*)>\s*;[^,]*\brel="?next"?')
_NO_HEAD = (405, 501)
_MOST_PAGES = 10_000


@dataclass(frozen=True)
class Mount:
    """Whether a blob was mounted; if not, what the registry said."""

    mounted: bool
    status: int
    reason: str = ""


class Registry:
    """One registry over one Transport. Every method raises the errors of ``oci.errors``, and UnreachableError."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.host = transport.registry
        self.uploader = Uploader(transport)

    def close(self) -> None:
        """Close every connection."""
        self.transport.close()

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def manifest(self, repository: str, reference: str) -> Document:
        """The manifest or index that a tag or digest names. PinError if the bytes have another digest."""
        return self._document(self._manifest("GET", repository, reference, (200,)), repository, reference)

    def find_manifest(self, repository: str, reference: str) -> Descriptor | None:
        """What a tag or digest names, without its content; None if there is no such manifest."""
        reply = self._manifest("HEAD", repository, reference, (200, 404, *_NO_HEAD))
        if reply.status == 404:
            return None
        digest, size = reply.headers.get("Docker-Content-Digest", ""), reply.headers.get("Content-Length", "")
        if reply.status == 200 and ":" in reference and digest not in ("", reference):
            what = self._name(repository, reference)
            raise PinError(f"{what}: the registry answers for {digest}, asked for {reference}")
        if reply.status == 200 and digest.startswith("sha256:") and size.isdecimal() and int(size):
            return Descriptor(_content_type(reply), digest, int(size))
        # Some registries do not have HEAD, or leave out its headers, which are optional (distribution-spec).
        reply = self._manifest("GET", repository, reference, (200, 404))
        return None if reply.status == 404 else self._document(reply, repository, reference).descriptor()

    def put_manifest(self, repository: str, document: Document, tag: str | None = None) -> Reply:
        """Store *document*, under *tag* if there is one. PinError if the registry made other bytes of it."""
        reference = tag if tag is not None else document.digest
        what = self._name(repository, reference)
        if len(document.raw) > DOCUMENT_LIMIT:
            raise UsageError(f"{what} would have {len(document.raw)} bytes; the limit is {DOCUMENT_LIMIT}")
        self.transport.traffic.check(len(document.raw), what)
        reply = self.transport.send(
            "PUT",
            f"/v2/{repository}/manifests/{reference}",
            what=f"storing {what}",
            scopes=[push(repository)],
            headers={"Content-Type": document.media_type},
            body=document.raw,
            ok=(201, 200, 202),
        )
        self._check_header(reply, document.raw, what)
        return reply

    def delete_manifest(self, repository: str, digest: str) -> None:
        """Remove a manifest; many registries do not allow it (405)."""
        self._delete(repository, "manifests", digest)

    def delete_blob(self, repository: str, digest: str) -> None:
        """Remove a blob from a repository; many registries do not allow it (405)."""
        self._delete(repository, "blobs", digest)

    def find_blob(self, repository: str, digest: str) -> bool:
        """Whether *repository* has the blob."""
        what = f"blob {digest} of {self.host}/{repository}"
        target, scopes = f"/v2/{repository}/blobs/{valid_digest(digest, what)}", [pull(repository)]
        reply = self.transport.send("HEAD", target, what=what, scopes=scopes, ok=(200, 404, *_NO_HEAD))
        if reply.status not in _NO_HEAD:
            return reply.status == 200
        # No HEAD: read the head of the answer to a GET and hang up.
        with self.transport.send("GET", target, what=what, scopes=scopes, ok=(200, 404), stream=True) as reply:
            return reply.status == 200

    def open_blob(self, repository: str, digest: str, size: int) -> BlobStream:
        """The whole blob as a stream, checked while it is read."""
        return BlobStream(self.transport, repository, digest, size)

    def read_blob(self, repository: str, descriptor: Descriptor) -> bytes:
        """A small blob, such as a configuration. UsageError over 4 MiB."""
        if descriptor.size > DOCUMENT_LIMIT:
            what = f"blob {descriptor.digest} of {self.host}/{repository}"
            raise UsageError(f"{what} has {descriptor.size} bytes; the limit for a document is {DOCUMENT_LIMIT}")
        with self.open_blob(repository, descriptor.digest, descriptor.size) as stream:
            return check_bytes(stream.read(), descriptor, stream.where)

    def blob_range(self, repository: str, digest: str, size: int | None, start: int, end: int) -> bytes:
        """Bytes *start* to *end* (exclusive) of a blob of *size* bytes. RangesRefusedError if the registry cannot.

        With *size* None (not known) there are fewer bytes where the blob ends before.
        """
        with BlobStream(self.transport, repository, digest, size, start=start, end=end) as stream:
            return stream.read()

    def mount(self, repository: str, digest: str, source: str) -> Mount:
        """Make *source*'s blob one of *repository* too, without moving it. Not being able to is an answer, no error.

        *source* is another repository of this registry.
        """
        # rules_img#712: an 'origin' parameter makes some registries start an upload instead.
        # quay#899: a mount without 'from' is refused with 400.
        query = urlencode({"mount": valid_digest(digest, f"a mount from {self.host}/{source}"), "from": source})
        try:
            reply = self.transport.send(
                "POST",
                f"/v2/{repository}/blobs/uploads/?{query}",
                what=f"mounting blob {digest} from {source} in {self.host}/{repository}",
                scopes=[push(repository), pull(source)],  # rules_img#751: without the second it is never mounted
                ok=(201, 202),
            )
        except RegistryError as error:
            # ggcr#1404, ggcr#1679: registries say 400, 401, 404 or 405 to a mount that they could also just not do.
            if not 400 <= error.status < 500 or error.status == 429:
                raise
            return Mount(False, error.status, error.message)
        if reply.status == 202:
            cancel(self.transport, repository, reply)
            return Mount(False, 202, f"{self.host} started an upload instead of mounting from {source}")
        return Mount(True, 201)

    def push_blob(
        self, repository: str, digest: str, size: int, open_at: OpenAt, *, progress: Progress | None = None, **more: Any
    ) -> bool:
        """Upload a blob unless *repository* has it; whether it was uploaded. See ``Uploader.upload``."""
        if self.find_blob(repository, digest):
            return False
        self.uploader.upload(repository, digest, size, open_at, progress=progress, **more)
        return True

    def tags(self, repository: str) -> Iterator[str]:
        """Every tag of *repository*, page by page."""
        for page in self.pages(f"/v2/{repository}/tags/list", repository, f"the tags of {self.host}/{repository}"):
            tags = page.get("tags")
            # An empty repository has null here in some registries.
            yield from (tag for tag in tags or () if isinstance(tag, str))

    def pages(self, target: str, repository: str, what: str) -> Iterator[dict[str, Any]]:
        """The JSON objects at *target* and at each page after it (Link, RFC 8288)."""
        seen: set[str] = set()
        while target and target not in seen and len(seen) < _MOST_PAGES:
            seen.add(target)
            reply = self.transport.send("GET", target, what=what, scopes=[pull(repository)])
            try:
                page = json.loads(reply.data)
            except (ValueError, RecursionError) as error:
                raise RegistryError(f"{what}: the answer is not JSON: {error}", status=200, url=reply.url) from error
            if not isinstance(page, dict):
                raise RegistryError(f"{what}: the answer is not a JSON object", status=200, url=reply.url)
            yield page
            link = _NEXT.search(reply.headers.get("Link", ""))
            target = self.transport.absolute(link[1], reply.url) if link else ""

    def _document(self, reply: Reply, repository: str, reference: str) -> Document:
        what = self._name(repository, reference)
        if ":" in reference:
            check_digest(reply.data, reference, what)
        self._check_header(reply, reply.data, what)
        return read_manifest(reply.data, _content_type(reply), what)

    def _manifest(self, method: str, repository: str, reference: str, ok: tuple[int, ...]) -> Reply:
        what = self._name(repository, reference)
        if ":" in reference:
            valid_digest(reference, what)
        target = f"/v2/{repository}/manifests/{reference}"
        return self.transport.send(
            method, target, what=what, scopes=[pull(repository)], headers={"Accept": ACCEPT}, ok=ok
        )

    def _delete(self, repository: str, kind: str, digest: str) -> None:
        target, what = f"/v2/{repository}/{kind}/{digest}", f"removing {self._name(repository, digest)}"
        self.transport.send("DELETE", target, what=what, scopes=[delete(repository)], ok=(202, 200, 204))

    def _check_header(self, reply: Reply, raw: bytes, what: str) -> None:
        if digest := reply.headers.get("Docker-Content-Digest", ""):
            check_digest(raw, digest, f"{what}: Docker-Content-Digest")

    def _name(self, repository: str, reference: str) -> str:
        return f"{self.host}/{repository}{'@' if ':' in reference else ':'}{reference}"


class RepositoryBlobs:
    """The blobs of one repository, as ``oci.blobs.Blobs``."""

    def __init__(self, registry: Registry, repository: str) -> None:
        self.registry, self.repository = registry, repository
        self.origin = f"{registry.host}/{repository}"
        self._sizes: dict[str, int] = {}

    def open(self, digest: str, size: int) -> BlobStream:
        """See ``Blobs.open``; checked while it is read."""
        self._sizes[digest] = size
        return self.registry.open_blob(self.repository, digest, size)

    def range(self, digest: str, start: int, end: int) -> bytes:
        """See ``Blobs.range``. RangesRefusedError where the registry cannot."""
        return self.registry.blob_range(self.repository, digest, self._sizes.get(digest), start, end)


def _content_type(reply: Reply) -> str:
    return reply.headers.get("Content-Type", "").partition(";")[0].strip().lower()
