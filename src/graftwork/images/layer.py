"""A deterministic layer: the same entries give the same bytes on any host, umask, time zone, day and Python."""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from graftwork.errors import UsageError
from graftwork.names import Digest, rel_path
from graftwork.oci.model import sha256_digest

WHITEOUT = ".wh."
_BLOCK = 0xFFFF
_GZIP_HEADER = bytes.fromhex("1f8b08000000000000ff")  # deflate, no name, time 0, unknown system (RFC 1952)


class Kind(Enum):
    FILE = "file"
    FOLDER = "folder"
    WHITEOUT = "whiteout"


@dataclass(frozen=True)
class Entry:
    """One path of a layer, relative to the image's root; *mode* is permission bits, owner 0:0 is root."""

    path: str
    kind: Kind = Kind.FILE
    data: bytes = b""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0

    @property
    def member(self) -> str:
        """The name in the archive: a white-out is a file with a prefix (OCI image-spec, layer)."""
        if self.kind is not Kind.WHITEOUT:
            return self.path
        folder, _, name = self.path.rpartition("/")
        return f"{folder}/{WHITEOUT}{name}" if folder else WHITEOUT + name


@dataclass(frozen=True)
class Layer:
    """*blob* is the gzip as stored, *digest* its sha256, *diff_id* the sha256 of the tar within."""

    blob: bytes
    digest: Digest
    diff_id: Digest

    @property
    def size(self) -> int:
        """Bytes of the blob."""
        return len(self.blob)


def build_layer(entries: Iterable[Entry], *, mtime: int) -> Layer:
    """Make the layer. *mtime* is seconds since 1970. Parent folders that *entries* lacks are root's, 0755.

    UsageError for a path that leaves the root, is given twice, lies under a file, or is both written and whited out.
    """
    tar = _tar(_complete(entries), mtime)
    blob = stored_gzip(tar)
    return Layer(blob, sha256_digest(blob), sha256_digest(tar))


def stored_gzip(data: bytes) -> bytes:
    """*data* as gzip of stored blocks. Compressed bytes differ between zlib builds; stored ones cannot."""
    out = bytearray(_GZIP_HEADER)
    for start in range(0, max(len(data), 1), _BLOCK):
        chunk = data[start : start + _BLOCK]
        out.append(1 if start + _BLOCK >= len(data) else 0)
        out += len(chunk).to_bytes(2, "little") + (len(chunk) ^ 0xFFFF).to_bytes(2, "little") + chunk
    out += zlib.crc32(data).to_bytes(4, "little") + (len(data) & 0xFFFFFFFF).to_bytes(4, "little")
    return bytes(out)


def _complete(entries: Iterable[Entry]) -> list[Entry]:
    found: dict[str, Entry] = {}
    for entry in entries:
        _check(entry)
        if entry.path in found:
            raise UsageError(f"two entries for {entry.path} in one layer")
        found[entry.path] = entry
    for path in list(found):
        for parent in _parents(path):
            if found.setdefault(parent, Entry(parent, Kind.FOLDER, mode=0o755)).kind is not Kind.FOLDER:
                raise UsageError(f"{path} lies under {parent}, which is not a folder in this layer")
    # A folder sorts before what it holds, and by parts, so that 'a-b' does not fall between 'a' and 'a/b'.
    return sorted(found.values(), key=lambda entry: entry.member.split("/"))


def _check(entry: Entry) -> None:
    try:
        rel_path(entry.path)
        entry.path.encode("utf-8")
    except ValueError as error:
        raise UsageError(f"a layer cannot hold this path: {error}") from error
    if any(part.startswith(WHITEOUT) for part in entry.path.split("/")):
        raise UsageError(f"{entry.path}: names that begin with {WHITEOUT!r} mean a white-out in a layer")
    if entry.data and entry.kind is not Kind.FILE:
        raise UsageError(f"{entry.path}: a {entry.kind.value} has no content")
    if not 0 <= entry.mode <= 0o7777:
        raise UsageError(f"{entry.path}: mode {entry.mode:o} is not permission bits")


def _parents(path: str) -> Iterator[str]:
    parts = path.split("/")
    for count in range(1, len(parts)):
        yield "/".join(parts[:count])


def _tar(entries: Iterable[Entry], mtime: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as archive:
        for entry in entries:
            info = tarfile.TarInfo(entry.member)
            info.type = tarfile.DIRTYPE if entry.kind is Kind.FOLDER else tarfile.REGTYPE
            info.size, info.mode, info.mtime = len(entry.data), entry.mode, mtime
            info.uid, info.gid = entry.uid, entry.gid
            archive.addfile(info, io.BytesIO(entry.data))
    return out.getvalue()
