"""A pinned wheel of which only the needed files are moved: from the cache, by HTTP ranges, else whole."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from graftwork.errors import MissingFile, PinError, TreeError
from graftwork.names import RelPath, Sha256
from graftwork.trees.archive import check_directory, read_member, reading_zip
from graftwork.trees.cache import Cache
from graftwork.trees.fetch import Progress, fetch_whole
from graftwork.trees.index import Location
from graftwork.trees.ranges import RangeReader, RangesRefused
from graftwork.trees.record import Row, check_file, check_record, parse_record, record_path
from graftwork.trees.wheel import WheelTree

if TYPE_CHECKING:
    import requests


@dataclass(frozen=True)
class WheelPin:
    """What a target and its lock say of a wheel. ``record_sha256`` is None until the lock was made."""

    project: str
    filename: str
    sha256: Sha256
    record_sha256: Sha256 | None = None


class Source(Protocol):
    """What finds a pinned file; ``PackageIndex`` is one."""

    @property
    def session(self) -> requests.Session:
        """The session to read the file with."""

    def find(self, project: str, filename: str, sha256: Sha256) -> Location:
        """Where the file is. Raises PinError, UnreachableError."""


class RemoteWheelTree:
    """The files of a pinned wheel, each checked against RECORD, RECORD against the lock.

    Every file that was read once is in the cache by its sha256: a second reading needs no network. The
    archive is opened at the first miss: the whole wheel if the cache or a local source has it, else by
    ranges; when the server refuses ranges, the whole wheel is downloaded here and nowhere else.

    With *first_use* the lock may not know RECORD yet: the one that the wheel at hand holds is taken, and
    ``record_sha256`` tells it, so that the caller can hold the next reading to it.
    """

    def __init__(
        self,
        pin: WheelPin,
        cache: Cache,
        source: Source,
        *,
        progress: Progress | None = None,
        waiting: Callable[[], None] | None = None,
        first_use: bool = False,
    ) -> None:
        if pin.record_sha256 is None and not first_use:
            raise ValueError("a wheel is read in parts only when the sha256 of its RECORD is pinned")
        self.origin = pin.filename
        self.pin, self._record_sha256 = pin, pin.record_sha256
        self._cache, self._source = cache, source
        self._progress, self._waiting = progress, waiting
        self._archive: WheelTree | _RangedZip | None = None
        self._moved = 0

    @property
    def moved_bytes(self) -> int:
        """Bytes of the wheel that were moved, by ranges or whole; 0 when all was cached or local."""
        ranged = self._archive.reader.moved_bytes if isinstance(self._archive, _RangedZip) else 0
        return ranged + self._moved

    @property
    def requests(self) -> int:
        """Requests for ranges of the wheel."""
        return self._archive.reader.requests if isinstance(self._archive, _RangedZip) else 0

    @property
    def how(self) -> str:
        """``cache`` (nothing was moved), ``ranges``, or ``whole`` (the whole wheel was opened)."""
        return "cache" if self._archive is None else "ranges" if isinstance(self._archive, _RangedZip) else "whole"

    @cached_property
    def rows(self) -> dict[RelPath, Row]:
        """RECORD, by path."""
        data = self._cache.get(self._record_sha256) if self._record_sha256 else None
        if data is None:
            data = self._from_archive(None)
            check_record(data, self._record_sha256, self.origin)
            self._record_sha256 = self._cache.put(data)
        return parse_record(data, self.origin)

    @property
    def record_sha256(self) -> Sha256 | None:
        """The sha256 of RECORD: the pinned one, or the one taken at first use; None while nothing was read."""
        return self._record_sha256

    def read(self, path: RelPath) -> bytes:
        """The file's bytes. Raises MissingFile, PinError, TreeError, UnreachableError, CacheError."""
        row = self.rows.get(path)
        if row is None:
            raise MissingFile(f"{path}: not in {self.origin}")
        sha256 = row.sha256 or (self._record_sha256 if path.endswith(".dist-info/RECORD") else None)
        if sha256 is None:
            raise PinError(f"{self.origin}: {path} has no hash in RECORD", hint="Nothing vouches for this file.")
        data = self._cache.get(sha256)
        if data is None:
            data = self._from_archive(path)
            check_file(data, row, path, self.origin)
            self._cache.put(data)
        return data

    def exists(self, path: RelPath) -> bool:
        """Whether RECORD names *path*."""
        return path in self.rows

    def paths(self) -> Iterator[RelPath]:
        """Every file that RECORD names."""
        return iter(self.rows)

    def __enter__(self) -> RemoteWheelTree:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the archive if it was opened."""
        if self._archive is not None:
            self._archive.close()

    def _from_archive(self, path: RelPath | None) -> bytes:
        """The file's bytes, or RECORD's for None; not yet checked."""
        try:
            archive = self._opened()
            return archive.read(path or archive.record_path)
        except RangesRefused:
            self._moved = self.moved_bytes
            self.close()
            self._archive = WheelTree(self._whole(self._location), record_sha256=self._record_sha256, name=self.origin)
            return self._archive.read(path or self._archive.record_path)

    def _opened(self) -> WheelTree | _RangedZip:
        if self._archive is None:
            local = self._cache.verified(self.pin.sha256)
            if local is None and self._location.path is not None:
                local = self._whole(self._location)
            if local is not None:
                self._archive = WheelTree(local, record_sha256=self._record_sha256, name=self.origin)
            else:
                self._archive = _RangedZip(self._location.url or "", self._source.session, self.origin)
        return self._archive

    @cached_property
    def _location(self) -> Location:
        return self._source.find(self.pin.project, self.pin.filename, self.pin.sha256)

    def _whole(self, location: Location) -> Path:
        last: int | None = None

        def counted(done: int, total: int | None) -> None:
            nonlocal last
            self._moved += max(0, done - last) if last is not None else 0  # the first call tells what was there
            last = done
            if self._progress:
                self._progress(done, total)

        return fetch_whole(location, self._cache, lambda: self._source.session, progress=counted, waiting=self._waiting)


class _RangedZip:
    """The wheel's archive through ranges; its bytes are nobody's yet: the caller checks them."""

    def __init__(self, url: str, session: requests.Session, origin: str) -> None:
        self.reader = RangeReader(url, session)
        self.origin = origin
        self._zip: zipfile.ZipFile | None = None
        self._members: dict[RelPath, zipfile.ZipInfo] = {}

    @property
    def record_path(self) -> RelPath:
        """Where RECORD lies; opens the archive."""
        self._open()
        return record_path(self._members, self.origin)

    def read(self, path: RelPath) -> bytes:
        """The member's bytes."""
        archive = self._open()
        if path not in self._members:
            raise PinError(f"{self.origin}: RECORD names {path}, the wheel lacks it", hint="Pin an unaltered wheel.")
        with self._reading():
            return read_member(archive, self._members[path], self.origin)

    def close(self) -> None:
        if self._zip is not None:
            self._zip.close()

    def _open(self) -> zipfile.ZipFile:
        if self._zip is None:
            from remotezip import RemoteZip

            self.reader.prepare()
            with self._reading():
                archive = RemoteZip("", fetcher=lambda *_, **__: self.reader)
                self._members = check_directory(archive, self.origin)
            self._zip = archive
        return self._zip

    @contextmanager
    def _reading(self) -> Iterator[None]:
        from remotezip import RemoteZipError

        try:
            with reading_zip(self.origin):
                yield
        except RemoteZipError as error:
            raise TreeError(f"{self.origin}: damaged zip archive: {error}", hint="Pin another file.") from error


def open_wheel(
    pin: WheelPin,
    cache: Cache,
    source: Source,
    *,
    whole: bool = False,
    progress: Progress | None = None,
    waiting: Callable[[], None] | None = None,
) -> WheelTree | RemoteWheelTree:
    """The pinned wheel as a tree: in parts when the lock pins its RECORD, else whole (as 'lock' needs it)."""
    if pin.record_sha256 is not None and not whole:
        return RemoteWheelTree(pin, cache, source, progress=progress, waiting=waiting)
    path = cache.verified(pin.sha256)
    if path is None:
        location = source.find(pin.project, pin.filename, pin.sha256)
        path = fetch_whole(location, cache, lambda: source.session, progress=progress, waiting=waiting)
    return WheelTree(path, record_sha256=pin.record_sha256, name=pin.filename)
