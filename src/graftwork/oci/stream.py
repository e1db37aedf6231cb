"""Reading a blob, whole or in part: checked while it passes, and taken up again where a connection was cut."""

from __future__ import annotations

import hashlib
import re
from types import TracebackType

from graftwork.errors import PinError, UnreachableError
from graftwork.oci.challenge import pull
from graftwork.oci.errors import RangesRefusedError, RegistryError
from graftwork.oci.families import valid_digest
from graftwork.oci.transport import Transport
from graftwork.oci.wire import CutError, Reply

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")
_PIECE = 1 << 20  # bytes
_HINT = "The registry, or something on the way to it, serves other bytes. Nothing of them was used."


class BlobStream:
    """Bytes *start* to *end* of a blob of *size* bytes. PinError with the last byte if the whole blob is another one.

    A part cannot be checked against the blob's digest: whoever reads it checks what is in it. A part of a blob of
    unknown size (None) may turn out to be shorter. With *check* false whoever reads it checks the whole one too.
    """

    def __init__(
        self,
        transport: Transport,
        repository: str,
        digest: str,
        size: int | None,
        *,
        start: int = 0,
        end: int | None = None,
        check: bool = True,
    ) -> None:
        self._transport, self._repository, self._digest, self._size = transport, repository, digest, size
        ends = [value for value in (size, end) if value is not None]
        self._at, self._end = start, min(ends, default=start)
        self._whole = (start, self._end) == (0, size)
        self.where = f"blob {digest} of {transport.registry}/{repository}"
        algorithm = valid_digest(digest, self.where).partition(":")[0]
        self._sum = hashlib.new(algorithm) if self._whole and check else None
        self._fruitless = 0
        self._reply: Reply | None = None
        transport.traffic.check(max(self._end - start, 0), self.where)
        self._reply = self._open()

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes, at most *size*; b'' at the end. UnreachableError if the connection stays down."""
        if size < 0:
            return b"".join(iter(lambda: self.read(_PIECE), b""))
        while self._at < self._end and size:
            data = self._piece(min(size, self._end - self._at))
            if data:
                self._at += len(data)
                self._check(data)
                return data
        return b""

    def close(self) -> None:
        """Give up the connection; the rest is not read."""
        if self._reply is not None:
            self._reply.close()
            self._reply = None

    def __enter__(self) -> BlobStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _piece(self, size: int) -> bytes:
        """What the connection has, or b'' after it was cut and opened again."""
        cause = "the answer ended early"
        try:
            data = self._reply.read(size) if self._reply is not None else b""
        except CutError as error:
            data, cause = b"", str(error)
        if data:
            self._fruitless = 0
            return data
        self.close()
        self._fruitless += 1
        if self._fruitless >= self._transport.patience.tries:
            hint = "Try again: a mirror goes on where it stopped."
            raise UnreachableError(f"{self.where}: cut again and again at byte {self._at}: {cause}", hint=hint)
        if self._fruitless > 1:
            self._transport.sleep(self._transport.patience.backoff * 2**self._fruitless)
        self._reply = self._open()
        return b""

    def _check(self, data: bytes) -> None:
        if self._sum is not None:
            self._sum.update(data)
            if self._at == self._end and self._digest.partition(":")[2] != self._sum.hexdigest():
                self.close()
                raise PinError(f"{self.where} holds other bytes: their sum is {self._sum.hexdigest()}", hint=_HINT)

    def _open(self) -> Reply | None:
        if self._at >= self._end:
            self._check(b"")
            return None
        part = self._at > 0 or not self._whole
        reply = self._transport.send(
            "GET",
            f"/v2/{self._repository}/blobs/{self._digest}",
            what=self.where,
            scopes=[pull(self._repository)],
            headers={"Range": f"bytes={self._at}-{self._end - 1}"} if part else {},
            ok=(200, 206) if part else (200,),
            stream=True,
        )
        try:
            if reply.status == 206:
                self._check_range(reply)
            else:
                self._check_length(reply)
                if part:
                    self._skip(reply)
        except BaseException:
            reply.close()
            raise
        return reply

    def _check_range(self, reply: Reply) -> None:
        said = reply.headers.get("Content-Range", "").strip()
        found = _CONTENT_RANGE.fullmatch(said)
        if found and self._size is None and found[3] == str(int(found[2]) + 1):
            self._end = min(self._end, int(found[3]))
        length = reply.headers.get("Content-Length", "")
        right_length = not length.isdecimal() or int(length) == self._end - self._at
        if not found or (int(found[1]), int(found[2]) + 1) != (self._at, self._end) or not right_length:
            got = f"{said or 'no Content-Range'} and {length or 'no'} bytes"
            wanted = f"bytes {self._at}-{self._end - 1}"
            raise RegistryError(f"{self.where}: asked for {wanted}, got {got}", status=206, url=reply.url)
        if self._size is not None and found[3] not in ("*", str(self._size)):
            raise PinError(f"{self.where} has {found[3]} bytes in the registry, its descriptor says {self._size}")

    def _check_length(self, reply: Reply) -> None:
        length = reply.headers.get("Content-Length", "")
        if self._size is not None and length.isdecimal() and int(length) != self._size:
            raise PinError(f"{self.where} has {length} bytes in the registry, its descriptor says {self._size}")

    def _skip(self, reply: Reply) -> None:
        """Some registries and caches ignore Range. A stream cut half-way passes by what it had; a part is refused."""
        if not self._whole:
            hint = "Read the whole blob, or ask 'graftwork doctor' what this registry can do."
            raise RangesRefusedError(f"{self.where}: ranges are ignored", status=200, url=reply.url, hint=hint)
        self._transport.traffic.check(self._end, f"{self.where} from its start again, as ranges are ignored,")
        left = self._at
        while left:
            try:
                data = reply.read(min(left, _PIECE))
            except CutError:
                data = b""
            if not data:
                return  # the next read finds the end and opens again
            left -= len(data)
