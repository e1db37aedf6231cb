"""A layer blob as the stream of its tar: decompressed in constant memory, verified against both of its digests."""

from __future__ import annotations

import hashlib
import importlib
import sys
import zlib
from collections.abc import Iterator
from enum import Enum
from typing import Any, Protocol

from graftwork.errors import PinError, TreeError, UsageError
from graftwork.oci.blobs import ByteStream

PIECE = 128 << 10  # compressed bytes taken at once
MAX_OUT = 256 << 10  # bytes that one step may produce
_HEAD = 512
_GZIP = b"\x1f\x8b\x08"
_FOREIGN = {b"\xfd7zXZ\x00": "xz", b"BZh": "bzip2", b"\x04\x22\x4d\x18": "lz4", b"PK": "zip"}


class Codec(Enum):
    TAR = "tar"
    GZIP = "gzip"
    ZSTD = "zstd"


class Tap(Protocol):
    """Who listens to a decompression. Offsets count bytes of the blob (*offset*) and of the tar (*out*)."""

    def start(self, codec: Codec, offset: int, out: int) -> None:
        """A gzip member, a zstd frame or the plain tar begins."""

    def piece(self, offset: int, data: bytes) -> None:
        """The blob's next bytes."""

    def step(self, offset: int, decoder: Any, out: int, data: bytes) -> None:
        """*data*, which ends at *out*, came from the blob's bytes before *offset*."""


def declared(media_type: str) -> Codec | None:
    """The compression that a layer's media type names; None where it names none. UsageError for an encrypted one."""
    if "+encrypted" in media_type:
        raise UsageError(
            f"layer of type {media_type}: encrypted layers cannot be read", hint="Decrypt the image first."
        )
    for ending, codec in ((("gzip", ".gz"), Codec.GZIP), (("zstd",), Codec.ZSTD), ((".tar",), Codec.TAR)):
        if media_type.endswith(ending):
            return codec
    return None


def detect(head: bytes) -> Codec | None:
    """The compression by the first 512 bytes; None for none that is known."""
    if head.startswith(_GZIP):
        return Codec.GZIP
    # Zstandard frames and the skippable frames that zstd:chunked and pzstd put in front (RFC 8878, 3.1).
    if head[:4] == b"\x28\xb5\x2f\xfd" or (head[1:4] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50):
        return Codec.ZSTD
    if not head.strip(b"\0") or head[257:262] == b"ustar" or _v7_header(head):
        return Codec.TAR
    return None


def _v7_header(head: bytes) -> bool:
    field = head[148:156].strip(b" \0")
    return len(head) == _HEAD and field.isdigit() and int(field, 8) == sum(head[:148]) + 256 + sum(head[156:])


def zstd_module() -> Any:
    """The standard library's zstd or its backport. UsageError when neither is there."""
    try:
        return importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    except ImportError as error:
        raise UsageError(
            "a layer is zstd-compressed and no zstd reader is installed", hint="Install backports.zstd."
        ) from error


def _gzip_module(tap: Tap | None) -> Any:
    """isal inflates twice as fast, but its state cannot be copied, as access points need. For reading only."""
    if tap is None:
        try:
            return importlib.import_module("isal.isal_zlib")
        except ImportError:
            return zlib
    return zlib


class LayerStream:
    """The tar inside one layer blob; *size* and *digest* are the blob's, *diff_id* the tar's sha256 or empty.

    ``finish`` reads to the end and checks all three. Before it, nothing that was read is vouched for.
    Raises PinError for another size or digest, TreeError for damaged compression. ``notes`` is for the report.
    """

    def __init__(
        self,
        raw: ByteStream,
        *,
        digest: str,
        size: int,
        media_type: str = "",
        diff_id: str = "",
        tap: Tap | None = None,
    ) -> None:
        self.digest, self.size, self.diff_id = digest, size, diff_id
        self.notes: list[str] = []
        self.taken = 0  # bytes of the blob
        self.out = 0  # bytes of the tar handed to the buffer
        self.verified = False
        self._raw, self._tap = raw, tap
        self._blob_hash, self._tar_hash = hashlib.sha256(), hashlib.sha256()
        self._buffer, self._at = b"", 0
        self._rest = b""  # taken and not yet decompressed
        self._decoder: Any = None
        named = declared(media_type)
        while len(self._rest) < _HEAD and (more := self._take()):
            self._rest += more
        self.codec = self._recognise(named, media_type)
        self._zlib: Any = _gzip_module(tap) if self.codec is Codec.GZIP else None
        self._zstd: Any = zstd_module() if self.codec is Codec.ZSTD else None

    @property
    def position(self) -> int:
        """Bytes of the tar that were read or skipped."""
        return self.out - len(self._buffer) + self._at

    def read(self, size: int) -> bytes:
        """*size* bytes of the tar; fewer only at its end."""
        end = self._at + size
        if end <= len(self._buffer):
            data = self._buffer[self._at : end]
            self._at = end
            return data
        return b"".join(self.pieces(size))

    def pieces(self, size: int) -> Iterator[bytes]:
        """The next *size* bytes of the tar in pieces of up to 256 KiB; fewer bytes only at its end."""
        while size > 0 and (self._at < len(self._buffer) or self._fill()):
            piece = self._buffer[self._at : self._at + size]
            self._at += len(piece)
            size -= len(piece)
            yield piece

    def skip(self, size: int) -> int:
        """Pass over *size* bytes of the tar; how many there were."""
        left = size
        while left > 0 and (self._at < len(self._buffer) or self._fill()):
            step = min(left, len(self._buffer) - self._at)
            self._at += step
            left -= step
        return size - left

    def finish(self) -> None:
        """Read to the end of the blob and check its size, its digest and the tar's diff_id. PinError, TreeError."""
        while self._fill():
            pass
        self._check_blob()
        found = "sha256:" + self._tar_hash.hexdigest()
        if self.diff_id and found != self.diff_id:
            raise PinError(f"layer {self.digest} unpacks to {found}, the image's configuration says {self.diff_id}")
        self.verified = True

    def _recognise(self, named: Codec | None, media_type: str) -> Codec:
        head = self._rest[:_HEAD]
        found = detect(head)
        if found is None:
            what = next((name for magic, name in _FOREIGN.items() if head.startswith(magic)), f"{head[:8].hex()} …")
            self._drain()
            raise TreeError(
                f"layer {self.digest} ({media_type or 'no media type'}) is neither tar, gzip nor zstd: {what}",
                hint="Rebuild the base with gzip or zstd layers.",
            )
        if named is not None and named is not found and head:
            self.notes.append(f"layer {self.digest} is named {named.value} ({media_type}) and is {found.value}")
        return found

    def _take(self) -> bytes:
        piece = self._raw.read(PIECE)
        if piece:
            if self._tap is not None:
                self._tap.piece(self.taken, piece)
            self.taken += len(piece)
            self._blob_hash.update(piece)
            if self.taken > self.size:
                raise PinError(f"blob {self.digest} is longer than the {self.size} bytes that its descriptor says")
        return piece

    def _fill(self) -> bool:
        """Replace the buffer by the next bytes of the tar; False at the end."""
        try:
            data = self._plain() if self.codec is Codec.TAR else self._inflated()
        except (zlib.error, self._module_error()) as error:
            raise self._damaged(str(error)) from error
        self._buffer, self._at = data, 0
        self.out += len(data)
        self._tar_hash.update(data)
        return bool(data)

    def _plain(self) -> bytes:
        if self._tap is not None and not self.out:
            self._tap.start(Codec.TAR, 0, 0)
        data, self._rest = self._rest or self._take(), b""
        return data

    def _inflated(self) -> bytes:
        while True:
            if self._decoder is None and not self._start():
                return b""
            decoder = self._decoder
            if not self._rest and not (self._zstd and not decoder.needs_input):
                self._rest = self._take()
                if not self._rest:
                    raise self._damaged("it ends in the middle")
            data: bytes = decoder.decompress(self._rest, MAX_OUT)
            self._rest = decoder.unused_data if decoder.eof else b"" if self._zstd else decoder.unconsumed_tail
            if self._tap is not None and data:
                self._tap.step(self.taken - len(self._rest), decoder, self.out + len(data), data)
            if decoder.eof:
                self._decoder = None
            if data:
                return data

    def _start(self) -> bool:
        """Begin the next member or frame; False where the blob ends."""
        while len(self._rest) < 4 and (more := self._take()):
            self._rest += more
        if self.codec is Codec.GZIP and self.out and not self._rest.startswith(_GZIP):
            # gzip(1) pads to a block with zeros and ignores them; anything else is not a layer.
            while self._rest and not self._rest.strip(b"\0"):
                self._rest = self._take()
        if not self._rest:
            return False
        if detect(self._rest) is not self.codec:
            raise self._damaged(f"{len(self._rest)} or more bytes follow that are no {self.codec.value}")
        if self._tap is not None:
            self._tap.start(self.codec, self.taken - len(self._rest), self.out)
        self._decoder = self._zstd.ZstdDecompressor() if self._zstd else self._zlib.decompressobj(31)
        return True

    def _module_error(self) -> type[Exception]:
        error: type[Exception] = self._zstd.ZstdError if self._zstd else self._zlib.error if self._zlib else zlib.error
        return error

    def _drain(self) -> None:
        while self._take():
            pass
        self._check_blob()

    def _check_blob(self) -> None:
        if self.taken != self.size:
            raise PinError(f"blob {self.digest} ends after {self.taken} bytes, its descriptor says {self.size}")
        found = "sha256:" + self._blob_hash.hexdigest()
        if found != self.digest:
            raise PinError(f"blob {self.digest} holds other bytes: their digest is {found}")

    def _damaged(self, reason: str) -> TreeError:
        """What to raise for damage: PinError (from here) if the blob is not the one asked for, else a TreeError."""
        self._drain()
        return TreeError(
            f"layer {self.digest}: damaged {self.codec.value} data: {reason}",
            hint="The blob is as its publisher made it; pin another base.",
        )
