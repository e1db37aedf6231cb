"""All or nothing: a set of files in a folder is replaced as one, whenever the process is killed.

New and old bytes go to ``.graftwork/blobs`` first. ``journal.json``, renamed into place, is the commit
point: before it nothing in the tree has changed; after it the next run finishes what it lists.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from graftwork.errors import StateError, TreeError
from graftwork.names import RelPath
from graftwork.patching import pycache
from graftwork.trees.folder import FolderTree

STATE = ".graftwork"


@dataclass(frozen=True)
class Write:
    """One file: the bytes that must be there now (None: no file) and the bytes to be (None: removed)."""

    path: str
    old: bytes | None
    new: bytes | None


@dataclass(frozen=True)
class _Entry:
    path: str
    old: str | None
    new: str | None
    mode: int
    python: str | None


class Store:
    """The ``.graftwork`` folder of a tree: blobs by sha256, the journal, and what was applied."""

    def __init__(self, tree: FolderTree) -> None:
        self.tree = tree
        self.folder = tree.root / STATE
        self.journal = self.folder / "journal.json"
        self.applied = self.folder / "applied.json"

    def record(self) -> dict[str, Any] | None:
        """What the last apply wrote down, or None. TreeError if it cannot be read."""
        return _load(self.applied)

    def blob(self, sha256: str) -> bytes:
        """Bytes kept by an earlier apply, verified. StateError when they are gone or spoiled."""
        try:
            data = (self.folder / "blobs" / sha256).read_bytes()
        except OSError as error:
            raise StateError(f"{self.folder}: kept copy {sha256[:12]} cannot be read: {error.strerror}") from None
        if hashlib.sha256(data).hexdigest() != sha256:
            raise StateError(f"{self.folder}: kept copy {sha256[:12]} is spoiled", hint="reinstall the engine")
        return data

    @property
    def interrupted(self) -> bool:
        """Whether a killed run left a journal that the next apply or revert has to finish."""
        return self.journal.exists()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the tree for one writer; finishes first what a killed run began."""
        try:
            self.folder.mkdir(exist_ok=True)
            (self.folder / ".gitignore").write_text("*\n", "utf-8")
            lock = (self.folder / "lock").open("w", encoding="utf-8")
        except OSError as error:
            raise TreeError(f"{self.folder}: cannot be written: {error.strerror}") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TreeError(f"{self.tree.root}: another graftwork is writing to it", hint="wait for it") from None
            self.recover()
            yield
            self._tidy()

    def recover(self) -> None:
        """Finish a run that was killed after its commit point."""
        journal = _load(self.journal)
        if journal is not None:
            self._finish([_Entry(**row) for row in journal["files"]], journal["applied"])

    def commit(
        self, writes: Sequence[Write], applied: dict[str, Any] | None, keep: Sequence[bytes | None] = ()
    ) -> None:
        """Make every write, and *applied* the tree's record (None: no record); *keep* are bytes that it names.

        Call with the lock held.
        TreeError when a file is not what was planned on, or cannot be written; nothing has changed then.
        """
        entries = []
        for write in writes:
            there = self.tree.read(RelPath(write.path)) if self.tree.exists(RelPath(write.path)) else None
            if there != write.old:
                raise TreeError(f"{write.path}: changed since it was planned; nothing was written", hint="run again")
            file = self._file(write.path)
            mode = file.stat().st_mode & 0o7777 if there is not None else 0o644
            entries.append(_Entry(write.path, _sha(write.old), _sha(write.new), mode, pycache.minor_of(file)))
        try:
            for data in (*keep, *(data for write in writes for data in (write.old, write.new))):
                self._keep(data)
            self._replace(self.journal, _dump({"schema": 1, "files": [asdict(e) for e in entries], "applied": applied}))
        except OSError as error:
            raise TreeError(f"{self.folder}: {error.strerror}; nothing was written") from None
        try:
            self._finish(entries, applied)
        except OSError as error:
            self._undo(entries)
            raise TreeError(f"{error.filename}: {error.strerror}; everything was put back") from None

    def _finish(self, entries: Sequence[_Entry], applied: dict[str, Any] | None) -> None:
        for entry in entries:
            self._put(entry, entry.new)
            if applied is not None and entry.new is not None:
                pycache.write_checked(self._file(entry.path), entry.python)
        if applied is None:
            self.applied.unlink(missing_ok=True)
        else:
            self._replace(self.applied, _dump(applied))
        self.journal.unlink()
        _sync(self.folder)

    def _undo(self, entries: Sequence[_Entry]) -> None:
        with contextlib.suppress(OSError):  # the journal then stays, and the next run finishes it
            for entry in entries:
                self._put(entry, entry.old)
            self.journal.unlink()

    def _put(self, entry: _Entry, sha256: str | None) -> None:
        """Give the file the kept bytes, without ever writing into the old one (it may be a hard link)."""
        file = self._file(entry.path)
        pycache.purge(file)
        if sha256 is None:
            file.unlink(missing_ok=True)
            self._drop_empty(file.parent)
            return
        self._replace(file, self.blob(sha256), entry.mode)
        pycache.purge(file)  # an import in between may have left one for the old source

    def _drop_empty(self, folder: Path) -> None:
        """Remove folders that only held files of ours."""
        while folder != self.tree.root and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent

    def _file(self, path: str) -> Path:
        return self.tree.real(RelPath(path)) if self.tree.exists(RelPath(path)) else self.tree.root / path

    def _keep(self, data: bytes | None) -> None:
        if data is not None and not (self.folder / "blobs" / hashlib.sha256(data).hexdigest()).exists():
            self._replace(self.folder / "blobs" / hashlib.sha256(data).hexdigest(), data)

    def _replace(self, file: Path, data: bytes, mode: int = 0o644) -> None:
        """Write beside, sync, rename: *file* has the old or the new bytes, never some of each."""
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(f".{file.name}.graftwork")
        try:
            with temporary.open("wb") as stream:
                stream.write(data)
                stream.flush()
                os.fchmod(stream.fileno(), mode)
                if os.geteuid() == 0 and file.exists():
                    os.fchown(stream.fileno(), file.stat().st_uid, file.stat().st_gid)
                os.fsync(stream.fileno())
            temporary.replace(file)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync(file.parent)

    def _tidy(self) -> None:
        """Drop blobs that nothing names any more, and the whole folder when nothing is applied."""
        record = self.record()
        if self.interrupted:
            return
        wanted = {row.get("pristine") for row in record["files"]} if record else set()
        blobs = self.folder / "blobs"
        for file in blobs.iterdir() if blobs.is_dir() else ():
            if file.name not in wanted:
                file.unlink()
        if record is None:
            import shutil

            shutil.rmtree(self.folder)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sha(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()


def _dump(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode("utf-8")


def _load(file: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(file.read_bytes())
        if not isinstance(value, dict) or value.get("schema") != 1 or not isinstance(value["files"], list):
            raise ValueError("not written by graftwork")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError) as error:
        raise TreeError(f"{file}: cannot be read: {error}", hint="remove it and restore the pristine files") from None
    return value
