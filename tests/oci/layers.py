"""Layer blobs for tests, in every compression, as files of a layout."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

from backports import zstd


def info(path: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.type, member.mode = kind, 0o755 if kind == tarfile.DIRTYPE else 0o644
    for name, value in fields.items():
        setattr(member, name, value)
    return member


def tar(members: Iterable[tuple[tarfile.TarInfo, bytes]], form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def sha(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def store(folder: Path, data: bytes) -> str:
    """Put a blob into the layout *folder*; its digest."""
    path = folder / "blobs" / "sha256" / sha(data).partition(":")[2]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return sha(data)


def members_of_64k(data: bytes) -> bytes:
    return b"".join(gzip.compress(data[at : at + 65536], 6, mtime=0) for at in range(0, len(data), 65536))


def frames_of_64k(data: bytes) -> bytes:
    skippable = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
    return skippable + b"".join(zstd.compress(data[at : at + 65536]) for at in range(0, len(data), 65536))


def flushed(data: bytes) -> bytes:
    """gzip with empty stored blocks in between, as pigz and rsyncable writers make."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    parts = [
        packer.compress(data[at : at + 50_001]) + packer.flush(zlib.Z_SYNC_FLUSH) for at in range(0, len(data), 50_001)
    ]
    return b"".join(parts) + packer.flush()


def strategy(how: int) -> Callable[[bytes], bytes]:
    def pack(data: bytes) -> bytes:
        packer = zlib.compressobj(6, zlib.DEFLATED, 31, 8, how)
        return packer.compress(data) + packer.flush()

    return pack


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "tar": lambda data: data,
    "gzip-1": lambda data: gzip.compress(data, 1, mtime=0),
    "gzip-6": lambda data: gzip.compress(data, 6, mtime=0),
    "gzip-9": lambda data: gzip.compress(data, 9, mtime=0),
    "gzip-stored": lambda data: gzip.compress(data, 0, mtime=0),
    "gzip-flushed": flushed,
    "gzip-members": members_of_64k,
    "gzip-padded": lambda data: gzip.compress(data, 6, mtime=0) + bytes(1024),
    "gzip-huffman": strategy(zlib.Z_HUFFMAN_ONLY),
    "gzip-rle": strategy(zlib.Z_RLE),
    "gzip-fixed": strategy(zlib.Z_FIXED),
    "zstd": lambda data: zstd.compress(data),
    "zstd-frames": frames_of_64k,
}
