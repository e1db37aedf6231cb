"""The members of a tar stream, as facts: nothing is ever written to disk (POSIX.1 pax, GNU and old formats)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NoReturn, Protocol

from graftwork.errors import TreeError

BLOCK = 512
_MAX_EXTRA = 1 << 20  # bytes of one pax or long-name header, as Go's archive/tar
_MAX_NUMBER = 1 << 62
_XATTR = "SCHILY.xattr."
_ZERO = b"\0" * BLOCK
_HINT = "The layer is damaged or was made to do harm; nothing was taken from it."


class Source(Protocol):
    @property
    def position(self) -> int: ...
    def read(self, size: int) -> bytes: ...
    def skip(self, size: int) -> int: ...
    def pieces(self, size: int) -> Iterator[bytes]: ...


class Kind(Enum):
    FILE = "file"
    FOLDER = "folder"
    SYMLINK = "symlink"
    HARDLINK = "hardlink"
    OTHER = "other"  # a device, a FIFO, a sparse file: never read


_KINDS = {
    **dict.fromkeys("0\x007", Kind.FILE),
    **{"5": Kind.FOLDER, "2": Kind.SYMLINK, "1": Kind.HARDLINK},
    **dict.fromkeys("346S", Kind.OTHER),
}


@dataclass(frozen=True)
class Member:
    """One member. *path* is relative to the root, without ``.`` and ``..``; the root itself is ``""``.

    *mode* is permission bits, *mtime* seconds (UTC), *size* bytes, *offset* where the data starts in the tar.
    A hard link's *link* is a path of the image; a symbolic link's is its text as it stands.
    """

    path: str
    kind: Kind
    mode: int
    uid: int
    gid: int
    size: int
    mtime: int
    link: str
    offset: int
    xattrs: dict[str, bytes] = field(default_factory=dict)


class TarScan:
    """Iterate over the members; ``data`` reads the current one's bytes, else they are skipped.

    TreeError for a bad checksum, a cut archive, a path that leaves the root, or a header that cannot be.
    """

    def __init__(self, stream: Source, where: str) -> None:
        self._stream, self._where = stream, where
        self._left = 0  # bytes to the next header
        self._padding = 0  # of them behind the member's data

    def __iter__(self) -> Iterator[Member]:
        extra: dict[str, bytes] = {}
        while (header := self._header()) is not None:
            size, kind = _number(header[124:136], self._bad), chr(header[156])
            if kind in "xLKg":
                text = self._extra(size)
                if kind == "x":
                    extra.update(_pax(text, self._bad))
                elif kind != "g":  # Go, and with it every container engine, ignores global headers
                    extra["path" if kind == "L" else "linkpath"] = text.partition(b"\0")[0]
                continue
            member = self._member(header, kind, size, extra)
            extra = {}
            yield member

    def data(self, member: Member) -> Iterator[bytes]:
        """The current member's bytes in pieces of up to 256 KiB. TreeError if the archive ends before."""
        left = member.size
        for piece in self._stream.pieces(member.size):
            left -= len(piece)
            self._left -= len(piece)
            yield piece
        if left:
            self._bad(f"it ends {left} bytes before the end of {member.path!r}")

    def _header(self) -> bytes | None:
        if (skipped := self._stream.skip(self._left)) != self._left:
            # umoci 0.4 writes no padding behind the last member; its bytes are all there.
            if self._left - skipped >= BLOCK or skipped < self._left - self._padding:
                self._bad("it ends in the middle of a member")
            self._left = 0
            return None
        self._left = 0
        header = self._stream.read(BLOCK)
        if not header or header == _ZERO:
            return None
        if len(header) != BLOCK:
            self._bad("it ends in the middle of a header")
        stated = _number(header[148:156], self._bad)
        found = sum(header) - sum(header[148:156]) + 256
        # Old tars summed signed bytes (GNU tar manual, 'Basic Tar Format').
        if stated != found and stated != found - 256 * sum(byte > 127 for byte in header[:148] + header[156:]):
            self._bad(f"a header's checksum is {stated}, its bytes give {found}")
        return header

    def _extra(self, size: int) -> bytes:
        if size > _MAX_EXTRA:
            self._bad(f"an extended header has {size} bytes")
        text = self._stream.read(size)
        if len(text) != size or self._stream.skip(-size % BLOCK) != -size % BLOCK:
            self._bad("it ends in the middle of an extended header")
        return text

    def _member(self, header: bytes, letter: str, size: int, extra: dict[str, bytes]) -> Member:
        name = header[:100].partition(b"\0")[0]
        if header[257:263] == b"ustar\0" and (folder := header[345:500].partition(b"\0")[0]):
            name = folder + b"/" + name
        name = extra.get("GNU.sparse.name", extra.get("path", name))
        link = extra.get("linkpath", header[157:257].partition(b"\0")[0]).decode("utf-8", "surrogateescape")
        size = _decimal(extra.get("size"), size, self._bad)
        kind = _KINDS.get(letter, Kind.OTHER)
        if kind is Kind.FILE and name.endswith(b"/"):
            kind = Kind.FOLDER  # V7 tar
        if kind is Kind.FILE and any(key.startswith("GNU.sparse.") for key in extra):
            kind = Kind.OTHER
        if letter == "S":
            self._sparse(header)
        path = self._normal(name.decode("utf-8", "surrogateescape"))
        # Some writers leave a size in folders and links; only files have data (POSIX.1, pax).
        stored = size if letter in "0\x007S" or letter not in _KINDS else 0
        self._padding = -stored % BLOCK
        self._left = stored + self._padding
        return Member(
            path=path,
            kind=kind,
            mode=_number(header[100:108], self._bad) & 0o7777,
            uid=_decimal(extra.get("uid"), _number(header[108:116], self._bad), self._bad),
            gid=_decimal(extra.get("gid"), _number(header[116:124], self._bad), self._bad),
            size=stored if kind is Kind.FILE else 0,
            mtime=_seconds(extra.get("mtime"), header[136:148], self._bad),
            link=self._normal(link) if kind is Kind.HARDLINK else link,
            offset=self._stream.position,
            xattrs={key[len(_XATTR) :]: value for key, value in extra.items() if key.startswith(_XATTR)},
        )

    def _sparse(self, header: bytes) -> None:
        more = header[482]
        while more:
            block = self._stream.read(BLOCK)
            if len(block) != BLOCK:
                self._bad("it ends in the middle of a sparse file's map")
            more = block[504]

    def _normal(self, name: str) -> str:
        parts: list[str] = []
        for part in name.split("/"):
            if part == "..":
                if not parts:
                    self._bad(f"member {name!r} leaves the root")
                parts.pop()
            elif part not in ("", "."):
                parts.append(part)
        return "/".join(parts)

    def _bad(self, what: str) -> NoReturn:
        raise TreeError(f"{self._where}: broken or unsafe tar archive: {what}", hint=_HINT)


class _Bad(Protocol):
    def __call__(self, what: str) -> NoReturn: ...


def _number(raw: bytes, bad: _Bad) -> int:
    """An octal field, or GNU's base-256 for what octal cannot hold."""
    if raw[0] & 0x80:
        value = int.from_bytes(raw, "big", signed=False) & ~(0x80 << 8 * (len(raw) - 1))
        if raw[0] & 0x40:
            bad(f"a negative number {raw!r}")
    else:
        text = raw.partition(b"\0")[0].strip()
        if text and (not text.isdigit() or b"8" in text or b"9" in text):
            bad(f"not an octal number: {raw!r}")
        value = int(text, 8) if text else 0
    if value > _MAX_NUMBER:
        bad(f"a number is too large: {value}")
    return value


def _decimal(raw: bytes | None, default: int, bad: _Bad) -> int:
    if raw is None:
        return default
    if not raw.isdigit() or len(raw) > 19:
        bad(f"not a decimal number: {raw[:40]!r}")
    return int(raw)


def _seconds(raw: bytes | None, header: bytes, bad: _Bad) -> int:
    whole = raw.partition(b".")[0] if raw is not None else b""
    if raw is None:
        return 0 if header[0] & 0x40 and header[0] & 0x80 else _number(header, bad)
    if not whole.removeprefix(b"-").isdigit() or len(whole) > 19:
        bad(f"not a time: {raw[:40]!r}")
    return int(whole)


def _pax(text: bytes, bad: _Bad) -> dict[str, bytes]:
    """The records ``<length> <key>=<value>\\n``; an empty value unsets the key."""
    records: dict[str, bytes] = {}
    while text:
        digits, space, _ = text.partition(b" ")
        length = int(digits) if digits.isdigit() and len(digits) < 8 else 0
        record = text[:length]
        key, equals, value = record[len(digits) + 1 :].partition(b"=")
        if not space or length <= len(digits) + 1 or len(record) != length or not equals or record[-1:] != b"\n":
            bad(f"a pax record is malformed: {text[:40]!r}")
        name = key.decode("utf-8", "surrogateescape")
        if name in ("path", "linkpath") and b"\0" in value:
            bad(f"a pax record holds a NUL: {text[:40]!r}")
        records[name] = value[:-1]
        if not value[:-1] and not name.startswith(_XATTR):
            del records[name]
        text = text[length:]
    return records
