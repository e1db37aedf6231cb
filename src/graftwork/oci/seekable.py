"""Random access to a compressed layer: access points near the wanted files, and ranged reads that start at them."""

from __future__ import annotations

import hashlib
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from graftwork.errors import PinError, TreeError
from graftwork.oci.blobs import Blobs
from graftwork.oci.deflate import WINDOW, Start, find_start, lead_in
from graftwork.oci.inflate import MAX_OUT, Codec, zstd_module

SPAN = 4 << 20  # bytes of tar that a file may lie behind its access point
_REUSE = 1 << 20  # bytes of tar up to which files share a point
_STEP = 256 << 10  # bytes of tar between two places that a search can begin at
_PIECE = 4 << 10  # bytes of blob: how closely a file's end is known
_MAX_KEPT = 64 << 20


class PointKind(Enum):
    PLAIN = "plain"  # uncompressed tar
    MEMBER = "member"  # a gzip member's header
    BLOCK = "block"  # a deflate block's header
    STORED = "stored"  # the length field of a deflate block without compression
    FRAME = "frame"  # a zstd frame's header


@dataclass(frozen=True)
class Point:
    """Where decompression can begin: byte *offset* of the blob and *bits* bits, which give byte *out* of the tar.

    *window* is the up to 32 KiB of tar before it, which a deflate block may refer to.
    """

    kind: PointKind
    offset: int
    out: int
    bits: int = 0
    window: bytes = b""


@dataclass(frozen=True)
class Access:
    """How to read one file: from *point* up to byte *end* (exclusive) of the blob."""

    point: Point
    end: int


class _Decoder:
    """Tar bytes from a point on, as the blob's bytes come in."""

    def __init__(self, point: Point) -> None:
        self._point = point
        self._first = point.kind in (PointKind.BLOCK, PointKind.STORED)
        self._raw = self._first
        self._held = b""
        self._decoder: Any = self._new()

    def outputs(self, data: bytes) -> Iterator[bytes]:
        """What *data* gives, in pieces of up to 256 KiB. zlib.error or ZstdError for what is no such data."""
        if self._point.kind is PointKind.PLAIN:
            yield data
            return
        if self._first and data:
            start = Start(0, self._point.bits, self._point.kind is PointKind.STORED)
            data, self._first = lead_in(start, data[0]) + data[1:], False
        data, self._held = self._held + data, b""
        frame, given = self._point.kind is PointKind.FRAME, b""
        while data or len(given) == MAX_OUT or (frame and not self._decoder.needs_input):
            if self._decoder.eof and (data := self._next(data)) == b"":
                return
            given = self._decoder.decompress(data, MAX_OUT)
            if given:
                yield given
            rest = b"" if frame else self._decoder.unconsumed_tail
            data = self._decoder.unused_data if self._decoder.eof else rest

    def _next(self, data: bytes) -> bytes:
        """Go to the next member: its bytes, or none while they are too few."""
        trailer = 8 if self._raw else 0  # CRC and size, which a decoder of bare deflate does not eat
        if len(data) < trailer + 4:
            self._held = data
            return b""
        self._raw = False
        self._decoder = self._new()
        return data[trailer:]

    def _new(self) -> Any:
        if self._point.kind is PointKind.FRAME:
            return zstd_module().ZstdDecompressor()
        if self._raw:
            return zlib.decompressobj(-zlib.MAX_WBITS, zdict=self._point.window)
        return zlib.decompressobj(31)


class Probe:
    """One wanted file during a scan: reads it through its point, and so proves the point and finds the end."""

    def __init__(self, point: Point, start: int, size: int) -> None:
        self.point = point
        self._skip, self._left = start - point.out, size
        self._decoder: _Decoder | None = _Decoder(point)
        self._hash = hashlib.sha256()
        self._end = point.offset
        self._done = not size

    @property
    def done(self) -> bool:
        """Whether the file was read to its end, or cannot be."""
        return self._done or self._decoder is None

    def feed(self, data: bytes) -> None:
        """Take the blob's next bytes."""
        for at in range(0, len(data), _PIECE):
            if self.done or self._decoder is None:
                return
            piece = data[at : at + _PIECE]
            try:
                for given in self._decoder.outputs(piece):
                    self._take(given)
                    if not self._left:
                        break
            except Exception as error:
                if not isinstance(error, zlib.error) and type(error).__name__ != "ZstdError":
                    raise
                self._decoder = None
                return
            self._end += len(piece)
            self._done = not self._left

    def access(self, sha256: str) -> Access | None:
        """How to read the file, if what came through the point has this sha256."""
        return Access(self.point, self._end) if self._done and self._hash.hexdigest() == sha256 else None

    def _take(self, given: bytes) -> None:
        skipped = min(self._skip, len(given))
        self._skip -= skipped
        mine = given[skipped : skipped + self._left]
        self._left -= len(mine)
        self._hash.update(mine)


@dataclass
class _Mark:
    """A place where a search can begin; without a decoder it is a point itself."""

    kind: PointKind
    offset: int
    out: int
    decoder: Any = None
    window: bytes = b""


class Recorder:
    """A tap on a LayerStream that makes access points for the files it is told of. It keeps 4 MiB of history."""

    def __init__(self) -> None:
        self.codec: Codec | None = None
        self._marks: list[_Mark] = []
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._tail = b""
        self._last: Point | None = None
        self._probes: list[Probe] = []

    def start(self, codec: Codec, offset: int, out: int) -> None:
        """See ``Tap``."""
        kind = {Codec.TAR: PointKind.PLAIN, Codec.GZIP: PointKind.MEMBER, Codec.ZSTD: PointKind.FRAME}[codec]
        self.codec, self._tail = codec, b""
        if len(self._marks) > 1 and out - self._marks[-2].out < _STEP // 8:
            del self._marks[-1]  # eStargz begins a member at each file; a search needs no more than some of them
        self._marks.append(_Mark(kind, offset, out))

    def piece(self, offset: int, data: bytes) -> None:
        """See ``Tap``."""
        for probe in self._probes:
            probe.feed(data)
        self._probes = [probe for probe in self._probes if not probe.done]
        if self.codec is not Codec.TAR:
            self._pieces.append((offset, data))

    def step(self, offset: int, decoder: Any, out: int, data: bytes) -> None:
        """See ``Tap``."""
        if self.codec is Codec.GZIP:
            self._tail = data[-WINDOW:] if len(data) >= WINDOW else (self._tail + data)[-WINDOW:]
            if out - self._marks[-1].out >= _STEP and not decoder.eof:
                self._marks.append(_Mark(PointKind.BLOCK, offset, out, decoder.copy(), self._tail))
        while len(self._marks) > 1 and self._marks[1].out <= out - SPAN - 2 * MAX_OUT:
            del self._marks[0]
        kept = self._marks[0].offset if self._marks[0].out >= out - SPAN - 3 * MAX_OUT else offset
        # The last two stay: a zstd decoder takes a piece before it uses it up.
        while len(self._pieces) > 2 and self._pieces[0][0] + len(self._pieces[0][1]) <= kept:
            self._pieces.popleft()

    def want(self, start: int, size: int) -> Probe | None:
        """Follow the file whose bytes are *start* to *start* + *size* of the tar. None where no point is near."""
        if self.codec is Codec.TAR:
            return None
        point = self._last
        if point is None or not point.out <= start <= point.out + _REUSE or point.offset < self._pieces[0][0]:
            point = self._search(start)
        if point is None:
            return None
        self._last = point
        probe = Probe(point, start, size)
        for offset, data in self._pieces:
            if offset + len(data) > point.offset:
                probe.feed(data[max(point.offset - offset, 0) :])
        if not probe.done:
            self._probes.append(probe)
        return probe

    def _search(self, start: int) -> Point | None:
        for mark in reversed(self._marks):
            if mark.out > start or mark.offset < self._pieces[0][0]:
                continue
            if mark.out < start - SPAN:
                return None
            if mark.decoder is None:
                return Point(mark.kind, mark.offset, mark.out)
            if point := self._block_after(mark, start):
                return point
        return None

    def _block_after(self, mark: _Mark, limit: int) -> Point | None:
        data = b"".join(data[max(mark.offset - at, 0) :] for at, data in self._pieces if at + len(data) > mark.offset)
        found = find_start(mark.decoder, mark.window, mark.out, data, limit)
        if found is None:
            return None
        start, out, window = found
        kind = PointKind.STORED if start.stored else PointKind.BLOCK
        return Point(kind, mark.offset + start.offset, out, start.bits, window)


def plain_access(start: int, size: int) -> Access:
    """How to read a file of an uncompressed layer."""
    return Access(Point(PointKind.PLAIN, start, start), start + size)


def read_at(blobs: Blobs, digest: str, access: Access, start: int, size: int, sha256: str) -> bytes:
    """The *size* bytes at *start* of the tar, by one ranged request. PinError if their sha256 is another one.

    TreeError if the blob's bytes cannot be decompressed from the point.
    """
    if size > _MAX_KEPT:
        raise TreeError(f"layer {digest}: a file of {size} bytes is too large to read whole")
    where = f"layer {digest} of {blobs.origin}, bytes {access.point.offset} to {access.end}"
    data = blobs.range(digest, access.point.offset, access.end)
    skip, out = start - access.point.out, bytearray()
    try:
        for given in _Decoder(access.point).outputs(data):
            out += given[min(skip, len(given)) :]
            skip -= min(skip, len(given))
            if len(out) >= size:
                break
    except Exception as error:
        if not isinstance(error, zlib.error) and type(error).__name__ != "ZstdError":
            raise
        raise PinError(
            f"{where}: not what the index was made from: {error}", hint="Make the index again: graftwork lock."
        ) from error
    found = hashlib.sha256(out[:size]).hexdigest()
    if len(out) < size or found != sha256:
        raise PinError(
            f"{where}: the file has sha256 {found}, the index says {sha256}",
            hint="Make the index again: graftwork lock.",
        )
    return bytes(out[:size])
