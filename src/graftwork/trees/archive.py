"""What makes a zip archive unsafe to read, for wheels on disk and wheels read by ranges alike."""

from __future__ import annotations

import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from graftwork.errors import TreeError
from graftwork.names import RelPath, rel_path

MIB = 1 << 20
MAX_MEMBERS = 200_000
MAX_TOTAL = 20 << 30  # bytes, unpacked
MAX_READ = 64 * MIB  # bytes of one member that is read
# Unpacked to packed: of a member over 1 MiB that is read, and of a whole archive over 64 MiB. Real wheels hold
# libraries that are mostly zeros (nvidia-cudnn-cu12 9.28: 600 to 1), so one such member does not condemn a wheel.
MAX_RATIO = 200
_ENCRYPTED = 0x1 | 0x40 | 0x2000  # APPNOTE.TXT 4.4.4: encrypted, strong encryption, masked headers
_LOCAL_HEADER = 30  # bytes, APPNOTE.TXT 4.3.7, without name and extra field
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError),
    *(RuntimeError, LookupError, OverflowError),
)
_HINT = "The wheel is damaged or was made to do harm; nothing was taken from it. Pin another file."


@contextmanager
def reading_zip(what: str) -> Iterator[None]:
    """Turn everything that zipfile raises on damaged input into a TreeError that names *what*."""
    try:
        yield
    except TreeError:
        raise
    except _DAMAGE as error:
        reason = str(error) or type(error).__name__
        raise TreeError(f"{what}: damaged zip archive: {reason}", hint=_HINT) from error


def check_directory(archive: zipfile.ZipFile, origin: str) -> dict[RelPath, zipfile.ZipInfo]:
    """The regular members by path, after the whole directory was found safe; TreeError names the member.

    Refused: paths that leave the archive, links and special files, encryption, two members for one
    path (also where names differ only in Unicode form), a file that is also a folder, members that share
    bytes, more than 200,000 members, over 20 GiB unpacked, and over 64 MiB unpacked from 1/200 of that.
    """
    infos = archive.infolist()
    if len(infos) > MAX_MEMBERS:
        raise _unsafe(origin, f"{len(infos)} members, more than {MAX_MEMBERS}")
    _check_sizes(infos, origin)
    files: dict[RelPath, zipfile.ZipInfo] = {}
    folders: set[str] = set()
    seen: dict[str, str] = {}
    for info in infos:
        path = _checked_member(info, origin)
        key = unicodedata.normalize("NFC", path)
        if key in seen:
            raise _unsafe(origin, f"two members for one path: {seen[key]!r} and {info.orig_filename!r}")
        seen[key] = info.orig_filename
        if info.is_dir():
            folders.add(key)
        else:
            files[path] = info
        folders.update(_parents(key, folders))
    for path in files:
        if (key := unicodedata.normalize("NFC", path)) in folders:
            raise _unsafe(origin, f"{seen[key]!r} is a file and a folder")
    _check_overlap(infos, archive.start_dir, origin)
    return files


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, origin: str) -> bytes:
    """The member's bytes, at most 64 MiB and exactly as many as declared; TreeError names the member."""
    where = f"{origin}: member {info.filename!r}"
    if info.file_size > MAX_READ:
        raise TreeError(f"{where}: {info.file_size} bytes, more than {MAX_READ} for a file to patch", hint=_HINT)
    if info.file_size > MIB and info.file_size > MAX_RATIO * info.compress_size:
        raise TreeError(f"{where}: unpacks {_ratio(info)}, over {MAX_RATIO} to 1", hint=_HINT)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise TreeError(f"{where}: compression method {info.compress_type} is not used by wheels", hint=_HINT)
    with reading_zip(where), archive.open(info) as member:
        data = member.read(info.file_size + 1)
    if len(data) != info.file_size:
        raise TreeError(f"{where}: declares {info.file_size} bytes, holds {len(data)}", hint=_HINT)
    return data


def _checked_member(info: zipfile.ZipInfo, origin: str) -> RelPath:
    name = info.orig_filename
    try:
        path = rel_path(name[:-1] if name.endswith("/") else name)
    except ValueError as error:
        raise _unsafe(origin, f"member {name!r}: {error}") from error
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind == stat.S_IFLNK:
        raise _unsafe(origin, f"member {name!r} is a symbolic link")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _unsafe(origin, f"member {name!r} is a special file (mode {info.external_attr >> 16:o})")
    if info.flag_bits & _ENCRYPTED:
        raise _unsafe(origin, f"member {name!r} is encrypted")
    return path


def _check_sizes(infos: list[zipfile.ZipInfo], origin: str) -> None:
    total = sum(info.file_size for info in infos)
    if total > MAX_TOTAL:
        raise _unsafe(origin, f"{total} bytes unpacked, more than {MAX_TOTAL}")
    if total > MAX_READ and total > MAX_RATIO * sum(info.compress_size for info in infos):
        largest = max(infos, key=lambda info: info.file_size)
        raise _unsafe(
            origin, f"a zip bomb: {total} bytes unpacked; member {largest.filename!r} alone {_ratio(largest)}"
        )


def _ratio(info: zipfile.ZipInfo) -> str:
    return f"{info.compress_size} to {info.file_size} bytes"


def _parents(path: str, known: set[str]) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        if path in known:
            return
        yield path


def _check_overlap(infos: list[zipfile.ZipInfo], end: int, origin: str) -> None:
    """Members that share packed bytes are how a small file unpacks to petabytes (D. Fifield, 'A better zip bomb')."""
    ordered = sorted(infos, key=lambda info: info.header_offset)
    limits = [*(info.header_offset for info in ordered[1:]), end]
    for info, limit in zip(ordered, limits, strict=True):
        if info.header_offset < 0 or info.header_offset + _LOCAL_HEADER + info.compress_size > limit:
            raise _unsafe(origin, f"member {info.filename!r} reaches into what follows it")


def _unsafe(origin: str, what: str) -> TreeError:
    return TreeError(f"{origin}: unsafe zip archive: {what}", hint=_HINT)
