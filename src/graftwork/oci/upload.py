"""Uploading a blob in the ways that registries take: one request, one stream, or chunks that can be resumed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

from graftwork.errors import PinError, UnreachableError
from graftwork.oci.challenge import Scope, pull, push
from graftwork.oci.errors import RegistryError
from graftwork.oci.families import valid_digest
from graftwork.oci.transport import Transport
from graftwork.oci.wire import Body, CutError, OpenAt, Reply

Progress = Callable[[int, int], None]

SMALL = 4 << 20  # bytes up to which one request is tried first
CHUNK = 64 << 20  # bytes; what a cut connection can lose
_SMALLEST = 1 << 20  # bytes below which a chunk that is refused as too large is not made smaller
_REFUSALS = (400, 404, 405, 411, 413, 415, 416, 501)  # 'not in this way', so another is tried
_RANGE = re.compile(r"(?:bytes[ =])?0-(\d{1,19})")
_STREAM = {"Content-Type": "application/octet-stream"}


class _RefusedError(Exception):
    """This way of uploading does not work here."""

    def __init__(self, error: RegistryError) -> None:
        super().__init__(str(error))
        self.error = error


class Uploader:
    """Uploads to one registry, and remembers which ways it refused."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._refused: set[str] = set()

    def upload(
        self,
        repository: str,
        digest: str,
        size: int,
        open_at: OpenAt,
        *,
        progress: Progress | None = None,
        chunk: int = CHUNK,
        small: int = SMALL,
        location: str = "",
        remember: Callable[[str], None] | None = None,
    ) -> None:
        """Upload *size* bytes that *open_at* gives from any offset on. *progress* gets (bytes stored, size).

        *location* goes on with an upload of an earlier run; *remember* is told where this one can be gone on with.
        PolicyError over the budget, PinError if the bytes are not the digest's, UnreachableError if cuts go on.
        """
        job = _Upload(self._transport, repository, digest, size, open_at)
        job.progress, job.remember, job.location = progress or job.progress, remember or job.remember, location
        self._transport.traffic.check(size, job.what)
        ways = job.ways(chunk)
        order = ["request", "stream", "chunks"] if size <= small and not location else ["chunks", "stream", "request"]
        order.sort(key=lambda way: way in self._refused)
        refused: list[tuple[str, RegistryError]] = []
        for way in order:
            try:
                ways[way]()
            except _RefusedError as error:
                refused.append((way, error.error))
                job.abandon()
                continue
            self._refused |= {name for name, _ in refused}
            self._refused.discard(way)
            return
        last = refused[-1][1]
        if any("DIGEST_INVALID" in error.codes for _, error in refused):
            raise PinError(f"{job.what}: the registry finds other bytes: {last.message}", hint="Did the file change?")
        raise last

    def attempt(self, way: str, repository: str, digest: str, size: int, open_at: OpenAt, *, chunk: int = CHUNK) -> str:
        """Upload in one way only ('request', 'stream' or 'chunks'); '' or why the registry refused it."""
        job = _Upload(self._transport, repository, digest, size, open_at)
        try:
            job.ways(chunk)[way]()
        except _RefusedError as error:
            job.abandon()
            return error.error.message
        return ""


@dataclass
class _Upload:
    """One blob on its way. ``offset``: how many bytes the registry has."""

    transport: Transport
    repository: str
    digest: str
    size: int
    open_at: OpenAt
    location: str = ""
    offset: int = 0
    least: int = 1
    best: int = 0
    fruitless: int = 0
    progress: Progress = field(default=lambda done, size: None)
    remember: Callable[[str], None] = field(default=lambda location: None)

    def __post_init__(self) -> None:
        self.what = f"uploading blob {self.digest} to {self.transport.registry}/{self.repository}"
        valid_digest(self.digest, self.what)

    def ways(self, chunk: int) -> dict[str, Callable[[], None]]:
        """The ways to upload, by name."""
        # atlan#2020: a default registry refuses the one request; dotnet/sdk#33019: others do chunks wrongly.
        return {"request": self.one_request, "stream": self.one_stream, "chunks": lambda: self.chunks(chunk)}

    def one_request(self) -> None:
        """POST, then PUT with the bytes."""
        while True:
            self._start()
            try:
                self._commit(Body(self.open_at, 0, self.size))
                break
            except CutError as error:
                if self._is_there():
                    break
                self._again(str(error))
        self.progress(self.size, self.size)

    def one_stream(self) -> None:
        """POST, one PATCH without ranges, PUT: what 'docker push' does, so every registry takes it."""
        while True:
            self._start()
            body = Body(self.open_at, 0, self.size)
            try:
                self._moved(self._send("PATCH", self.location, headers=_STREAM, body=body, ok=(202, 201, 204)))
                self._commit(b"")
                break
            except CutError as error:
                if self._is_there():
                    break
                self._again(str(error))
        self.progress(self.size, self.size)

    def chunks(self, chunk: int) -> None:
        """POST, a PATCH for each chunk, PUT; after a cut, on from where the registry says it is."""
        self._resume() if self.location else self._start()
        while True:
            before = self.offset
            length = min(max(chunk, self.least), self.size - before)
            try:
                if length:
                    self._chunk(before, length)
                    self.progress(self.offset, self.size)
                else:
                    self._commit(b"")
                    return
            except CutError as error:
                if not length and self._is_there():
                    return
                self._again(str(error), max(before, self._resume()))
            except _RefusedError as error:
                if error.error.status != 413 or length <= max(_SMALLEST, self.least):
                    raise
                chunk = max(length // 4, self.least)  # a proxy's limit on bodies
                self._resume()

    def abandon(self) -> None:
        """Tell the registry that this upload is given up."""
        if self.location:
            _delete(self.transport, self.repository, self.location)
        self.location, self.fruitless, self.best = "", 0, 0

    def _chunk(self, start: int, length: int) -> None:
        headers = {**_STREAM, "Content-Range": f"{start}-{start + length - 1}"}
        body = Body(self.open_at, start, length)
        reply = self._send("PATCH", self.location, headers=headers, body=body, ok=(202, 201, 204, 416))
        if reply.status != 416:
            self._moved(reply)
            if _stored(reply, start + length) == start + length:
                self.offset = start + length
                return
        # Less than we sent: what an upload's own address says counts more than the answer to a chunk.
        if self._resume(start + length) <= start:
            error = f"{self.what}: the registry's Range stands still at {self.offset}"
            raise _RefusedError(RegistryError(error, status=reply.status, method="PATCH", url=reply.url))

    def _start(self) -> None:
        reply = self.transport.send(
            "POST", f"/v2/{self.repository}/blobs/uploads/", what=self.what, scopes=self._scopes(), ok=(202,)
        )
        self.offset, self.location = 0, ""
        least = reply.headers.get("OCI-Chunk-Min-Length", "")
        self.least = int(least) if least.isascii() and least.isdecimal() and len(least) < 19 else 1
        self._moved(reply)
        if not self.location:
            raise RegistryError(f"{self.what}: the registry started an upload without a Location", status=202)

    def _resume(self, expected: int = 0) -> int:
        """Ask how much the registry has, and go on there; start anew where it has forgotten the upload.

        distribution up to 3.0 forgets it after a cut within a chunk: it compares its size with the last answer's.
        """
        try:
            reply = self._send("GET", self.location, ok=(204, 200, 202), retry=True)
        except _RefusedError:
            self._start()
            return self.offset
        self._moved(reply)
        self.offset = min(_stored(reply, expected), self.size)
        return self.offset

    def _commit(self, body: bytes | Body) -> None:
        parts = urlsplit(self.location)
        query = f"{parts.query}&digest={self.digest}" if parts.query else f"digest={self.digest}"
        target = urlunsplit(parts._replace(query=query))
        # A registry may read the whole blob again before it answers.
        patience = self.transport.patience.commit
        reply = self._send("PUT", target, headers=_STREAM, body=body, ok=(201, 204), timeout=patience)
        said = reply.headers.get("Docker-Content-Digest", self.digest)
        if said != self.digest:
            raise PinError(f"{self.what}: the registry stored {said}")

    def _send(
        self,
        method: str,
        target: str,
        *,
        ok: tuple[int, ...],
        headers: dict[str, str] | None = None,
        body: bytes | Body = b"",
        retry: bool = False,
        timeout: float | None = None,
    ) -> Reply:
        try:
            return self.transport.send(
                method,
                target,
                what=self.what,
                scopes=self._scopes(),
                headers=headers,
                body=body,
                ok=ok,
                retry=retry,
                timeout=timeout,
            )
        except RegistryError as error:
            if error.status in _REFUSALS:
                raise _RefusedError(error) from error
            if error.status >= 500 and not retry:
                raise CutError(error.message, before=False) from error  # as after a cut, nobody knows what arrived
            raise
        finally:
            if isinstance(body, Body):
                body.close()

    def _moved(self, reply: Reply) -> None:
        """The next request goes where the last answer says; Location may be relative or have a query."""
        if location := reply.headers.get("Location", ""):
            self.location = self.transport.absolute(location, reply.url)
            self.remember(self.location)

    def _again(self, cause: str, reached: int = 0) -> None:
        """Wait before another attempt, or give up after several that came no further than one before."""
        patience = self.transport.patience
        self.fruitless = 0 if reached > self.best else self.fruitless + 1
        self.best = max(self.best, reached)
        if self.fruitless >= patience.tries:
            hint = "Try again: what is stored is not sent again. Check the network and the proxy."
            raise UnreachableError(f"{self.what}: cut {self.fruitless} times at byte {self.best}: {cause}", hint=hint)
        if self.fruitless:
            self.transport.sleep(patience.backoff * 2**self.fruitless)

    def _is_there(self) -> bool:
        """Whether the blob was stored although the answer was lost."""
        target = f"/v2/{self.repository}/blobs/{self.digest}"
        reply = self.transport.send(
            "HEAD", target, what=self.what, scopes=[pull(self.repository)], ok=(200, 404, 405, 501)
        )
        return reply.status == 200

    def _scopes(self) -> list[Scope]:
        return [push(self.repository)]


def cancel(transport: Transport, repository: str, started: Reply) -> None:
    """Give up the upload that *started* began."""
    if location := started.headers.get("Location", ""):
        _delete(transport, repository, transport.absolute(location, started.url))


def _delete(transport: Transport, repository: str, location: str) -> None:
    try:
        transport.send(
            "DELETE", location, what="giving up an upload", scopes=[push(repository)], ok=(204, 200, 202), retry=False
        )
    except (RegistryError, CutError):
        return  # Many registries cannot; all of them forget an upload after a while.


def _stored(reply: Reply, expected: int) -> int:
    """How many bytes the registry says it has; *expected* where it says nothing.

    '0-0' means one byte, but docker-registry also says it of none.
    """
    found = _RANGE.fullmatch(reply.headers.get("Range", "").strip())
    if not found:
        return expected
    last = int(found[1])
    return last + 1 if last or expected == 1 else 0
