"""A wheel on disk, each file checked against the wheel's own RECORD."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from pathlib import Path

from graftwork.errors import MissingFile, TreeError
from graftwork.names import RelPath, Sha256, sha256_hex
from graftwork.trees.archive import check_directory, read_member, reading_zip
from graftwork.trees.record import Row, check_file, check_record, parse_record, record_path, vouched


class WheelTree:
    """The files of the wheel at *path*; a context manager, as it keeps the file open.

    RECORD vouches for each file that is read. Whether RECORD is the right one is known when the caller has
    checked the whole wheel's sha256, or gives *record_sha256* from the lock.
    Raises TreeError for an unsafe or damaged archive, PinError for a RECORD that differs or does not fit.
    """

    def __init__(self, path: Path, *, record_sha256: Sha256 | None = None, name: str = "") -> None:
        self.path = path
        self.origin = name or path.name
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise TreeError(f"{path}: cannot be read ({error.strerror})", hint="Check the path.") from error
        try:
            with reading_zip(self.origin):
                self._zip = zipfile.ZipFile(self._file)
                self._members = check_directory(self._zip, self.origin)
            self.record_path = record_path(self._members, self.origin)
            self._record = read_member(self._zip, self._members[self.record_path], self.origin)
            check_record(self._record, record_sha256, self.origin)
            self.rows: dict[RelPath, Row] = parse_record(self._record, self.origin)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> WheelTree:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the tree cannot be read afterwards."""
        self._zip.close()
        self._file.close()

    def record_sha256(self) -> Sha256:
        """The sha256 of RECORD's bytes: what a lock pins, once the whole wheel's sha256 was checked."""
        return sha256_hex(hashlib.sha256(self._record).hexdigest())

    def read(self, path: RelPath) -> bytes:
        """The file's bytes, equal to what RECORD says. Raises MissingFile, PinError, TreeError."""
        if path == self.record_path:
            return self._record
        info = self._members.get(path)
        if info is None:
            raise MissingFile(f"{path}: not in {self.origin}")
        row = vouched(self.rows, path, self.origin)
        data = read_member(self._zip, info, self.origin)
        check_file(data, row, path, self.origin)
        return data

    def exists(self, path: RelPath) -> bool:
        """Whether *path* is a file of the wheel."""
        return path in self._members

    def paths(self) -> Iterator[RelPath]:
        """Every file of the wheel, in the archive's order."""
        return iter(self._members)
