"""Layers streamed to disk: a tar, hashed before and after compression as it is written, never held in memory."""

from __future__ import annotations

import hashlib
import random
import tarfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Literal, Protocol

Compression = Literal["gzip", "zstd", "none"]
SEGMENT = 1 << 20  # bytes of filler that repeat, far beyond gzip's window
_SEGMENTS = 48
_LEVEL = 1


@dataclass(frozen=True)
class Blob:
    """A finished layer on disk. *diff_id* and *digest* are ``sha256:``…, *size* in bytes as stored."""

    path: Path
    diff_id: str
    digest: str
    size: int
    compression: Compression
    created_by: str


class Packer(Protocol):
    """A compressor that gives bytes as it goes."""

    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


class _Plain:
    def compress(self, data: bytes) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


class _Gzip:
    """RFC 1952 around raw deflate; filler that was deflated before is put in as it is, after a full flush."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, -15)
        self._crc = self._length = 0
        self._begun = False

    def _head(self) -> bytes:
        begun, self._begun = self._begun, True
        return b"" if begun else b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"

    def _count(self, data: bytes) -> None:
        self._crc, self._length = zlib.crc32(data, self._crc), self._length + len(data)

    def compress(self, data: bytes) -> bytes:
        self._count(data)
        return self._head() + self._deflate.compress(data)

    def insert(self, number: int, seed: int) -> bytes:
        segment = filler(number, seed)
        self._count(segment)
        return self._head() + self._deflate.flush(zlib.Z_FULL_FLUSH) + _deflated(number, seed)

    def flush(self) -> bytes:
        end = self._crc.to_bytes(4, "little") + (self._length & 0xFFFFFFFF).to_bytes(4, "little")
        return self._head() + self._deflate.flush() + end


def _packer(compression: Compression) -> Packer:
    if compression == "gzip":
        return _Gzip()
    if compression == "none":
        return _Plain()
    from backports import zstd

    packer: Packer = zstd.ZstdCompressor(level=_LEVEL)
    return packer


@cache
def filler(number: int, seed: int) -> bytes:
    """One of the repeating segments: even numbers are random bytes, odd ones halve under compression."""
    data = random.Random(f"{seed}/{number}").randbytes(SEGMENT)
    return data.translate(bytes(byte & 0x0F for byte in range(256))) if number % 2 else data


@cache
def _deflated(number: int, seed: int) -> bytes:
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, -15)
    return deflate.compress(filler(number, seed)) + deflate.flush(zlib.Z_FULL_FLUSH)


@dataclass
class Hasher:
    """sha256 in a thread of its own, one piece behind the writer."""

    pool: ThreadPoolExecutor
    hash: hashlib._Hash = field(default_factory=hashlib.sha256)
    pending: Future[None] | None = None

    def update(self, data: bytes) -> None:
        if self.pending:
            self.pending.result()
        self.pending = self.pool.submit(self.hash.update, data)

    def digest(self) -> str:
        if self.pending:
            self.pending.result()
        return "sha256:" + self.hash.hexdigest()


class LayerWriter:
    """Adds members to one layer. Paths are relative, without a slash at either end."""

    def __init__(self, out: IO[bytes], compression: Compression, epoch: int, pool: ThreadPoolExecutor) -> None:
        self.epoch, self.size = epoch, 0
        self._out, self._packer = out, _packer(compression)
        self._raw, self._packed = Hasher(pool), Hasher(pool)
        self._known: set[str] = set()
        self._tail = bytearray()

    def folder(self, path: str, *, mode: int = 0o755, owner: int = 0) -> None:
        """A folder, unless this layer has it already."""
        if path not in self._known:
            self._known.add(path)
            self._member(path + "/", tarfile.DIRTYPE, mode, owner)

    def link(self, path: str, target: str, *, owner: int = 0) -> None:
        """A symbolic link."""
        self._member(path, tarfile.SYMTYPE, 0o777, owner, linkname=target)

    def file(self, path: str, data: bytes, *, mode: int = 0o644, owner: int = 0) -> None:
        """A regular file with *data*."""
        self._member(path, tarfile.REGTYPE, mode, owner, size=len(data))
        self._put(data)
        self._put(bytes(-len(data) % tarfile.BLOCKSIZE))

    def copy(self, info: tarfile.TarInfo, data: IO[bytes] | None) -> None:
        """A member as another archive has it."""
        self._put(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        if data is not None and info.isreg():
            while piece := data.read(SEGMENT):
                self._put(piece)
            self._put(bytes(-info.size % tarfile.BLOCKSIZE))

    def filler(self, path: str, numbers: list[int], seed: int) -> None:
        """A file made of the filler segments *numbers*."""
        self._member(path, tarfile.REGTYPE, 0o755, 0, size=len(numbers) * SEGMENT)
        for number in numbers:
            if isinstance(self._packer, _Gzip):
                self._drain()
                self._raw.update(filler(number, seed))
                self._write(self._packer.insert(number, seed))
            else:
                self._put(filler(number, seed))

    def finish(self) -> tuple[str, str]:
        """End the archive; diff_id and digest."""
        self._put(bytes(2 * tarfile.BLOCKSIZE))
        self._drain()
        self._write(self._packer.flush())
        return self._raw.digest(), self._packed.digest()

    def _member(self, path: str, kind: bytes, mode: int, owner: int, *, size: int = 0, linkname: str = "") -> None:
        info = tarfile.TarInfo(path)
        info.type, info.mode, info.uid, info.gid = kind, mode, owner, owner
        info.size, info.linkname, info.mtime = size, linkname, self.epoch
        self._put(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))

    def _put(self, data: bytes) -> None:
        self._tail += data
        if len(self._tail) >= SEGMENT:
            self._drain()

    def _drain(self) -> None:
        data, self._tail = bytes(self._tail), bytearray()
        self._raw.update(data)
        self._write(self._packer.compress(data))

    def _write(self, data: bytes) -> None:
        self._packed.update(data)
        self.size += len(data)
        self._out.write(data)


@contextmanager
def _hashing() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield pool


def make_layer(
    path: Path, created_by: str, compression: Compression, epoch: int, fill: Callable[[LayerWriter], None]
) -> Blob:
    """Write a layer to *path*: *fill* adds its members."""
    with path.open("wb") as out, _hashing() as pool:
        writer = LayerWriter(out, compression, epoch, pool)
        fill(writer)
        diff_id, digest = writer.finish()
    return Blob(path, diff_id, digest, writer.size, compression, created_by)


def make_filler(path: Path, number: int, size: int, compression: Compression, epoch: int, seed: int) -> Blob:
    """A layer of about *size* stored bytes in library-like files of at most 1 GiB, the same for the same arguments."""
    chooser = random.Random(f"{seed}/layer/{number}")

    def stored(segment: int) -> int:
        return SEGMENT if compression == "none" else len(_deflated(segment, seed))

    def fill(layer: LayerWriter) -> None:
        where = f"opt/standin/filler-{number}"
        for folder in ("opt", "opt/standin", where):
            layer.folder(folder)
        left, file = size, 0
        while left > 0:
            segments: list[int] = []
            while left > 0 and len(segments) < 1024:
                segments.append(chooser.randrange(_SEGMENTS))
                left -= stored(segments[-1])
            layer.filler(f"{where}/libfiller.so.{file}", segments, seed)
            file += 1

    return make_layer(path, f"filler {number}: no real software", compression, epoch, fill)
