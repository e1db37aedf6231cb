"""A blob of one registry as the source of an upload to another: read once, held nowhere, checked on the way."""

from __future__ import annotations

import contextlib
import hashlib

from graftwork.errors import PinError
from graftwork.oci.errors import RangesRefusedError
from graftwork.oci.families import valid_digest
from graftwork.oci.model import Descriptor
from graftwork.oci.registry import Registry
from graftwork.oci.stream import BlobStream
from graftwork.oci.wire import Readable

_PIECE = 1 << 20  # bytes


class Flow:
    """A blob of the source, read once from start to end unless the target wants a part again."""

    def __init__(self, source: Registry, repository: str, blob: Descriptor) -> None:
        self._source, self._repository, self._blob = source, repository, blob
        self._stream: BlobStream | None = None
        self._at = 0
        self._summed = 0
        self._sum = hashlib.new(valid_digest(blob.digest, f"{source.host}/{repository}").partition(":")[0])

    def open_at(self, offset: int) -> Readable:
        """What is read from *offset* on. The connection to the source is kept where it is there already."""
        if self._stream is None or self._at != offset:
            self.close()
            self._stream, self._at = self._open(offset), offset
        return _Reader(self)

    def read(self, size: int) -> bytes:
        """The next bytes. PinError with the last ones if all were read and are not the digest's."""
        if self._stream is None:
            return b""
        data = self._stream.read(size)
        if self._at <= self._summed < self._at + len(data):
            self._sum.update(data[self._summed - self._at :])
            self._summed = self._at + len(data)
        self._at += len(data)
        expected = self._blob.digest.partition(":")[2]
        if self._summed == self._blob.size and self._sum.hexdigest() != expected:
            raise PinError(f"{self._stream.where} holds other bytes: their sum is {self._sum.hexdigest()}")
        return data

    def close(self) -> None:
        """End the connection to the source."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _open(self, offset: int) -> BlobStream:
        digest, size = self._blob.digest, self._blob.size
        if offset:
            with contextlib.suppress(RangesRefusedError):  # then from its start
                return BlobStream(self._source.transport, self._repository, digest, size, start=offset)
        stream = BlobStream(self._source.transport, self._repository, digest, size, check=False)
        while offset and (data := stream.read(min(offset, _PIECE))):
            offset -= len(data)
        return stream


class _Reader:
    """One request's view; the flow stays open for the next one."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def read(self, size: int, /) -> bytes:
        return self._flow.read(size)

    def close(self) -> None:
        return
