"""Download of a whole wheel into the cache: one build at a time, resumed after a cut, then checked."""

from __future__ import annotations

import contextlib
import fcntl
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from graftwork.errors import PinError, TreeError, UnreachableError, redact
from graftwork.trees.cache import Cache, sha256_of
from graftwork.trees.index import Location
from graftwork.trees.session import reaching

if TYPE_CHECKING:
    import requests

Progress = Callable[[int, "int | None"], None]

_PIECE = 1 << 16  # bytes; what a cut connection delivered of an unfinished piece is lost
_TRIES = 5  # in a row without a single new byte
_PAUSE = 0.25  # seconds, doubled with each fruitless try
_MAX_SIZE = 20 << 30  # bytes, where the index does not say the size
_HINT = "The source serves another file than the pinned one: find out why before you change the pin."
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


def fetch_whole(
    location: Location,
    cache: Cache,
    session: Callable[[], requests.Session],
    *,
    progress: Progress | None = None,
    waiting: Callable[[], None] | None = None,
) -> Path:
    """The path of the whole file, its sha256 checked: in the cache, or where a local source has it.

    *progress* gets (bytes so far, total or None). *waiting* is called when another process downloads the
    same file; this one then waits and finds it. PinError for another hash (the file is removed),
    UnreachableError when the connection stays down, CacheError when the disk is full.
    """
    if location.path is not None:
        _check(location.path, location)
        return location.path
    if done := cache.verified(location.sha256):
        return done
    target = cache.path(location.sha256)
    with _locked(target, cache, waiting):
        if done := cache.verified(location.sha256):
            return done
        part = _Part(target.with_name(target.name + ".part"), cache)
        resumed = part.size() > 0
        while True:
            try:
                _download(location, part, session(), progress or (lambda done, total: None))
                _check(part.path, location)
                break
            except PinError:
                part.remove()
                # The leftover of an earlier run may be of another file; that is no fault of the server.
                if not resumed:
                    raise
                resumed = False
        part.become(target)
    return target


class _Part:
    """The unfinished file and, beside it, the validator (RFC 9110, 8.8) of the response that it came from."""

    def __init__(self, path: Path, cache: Cache) -> None:
        self.path = path
        self.writing = cache.writing
        self._note = path.with_name(path.name + ".validator")

    def size(self) -> int:
        with self.writing(self.path), contextlib.suppress(FileNotFoundError):
            return self.path.stat().st_size
        return 0

    def validator(self) -> str:
        with self.writing(self._note), contextlib.suppress(FileNotFoundError):
            return self._note.read_text(encoding="latin-1").strip()
        return ""

    def start(self, response: requests.Response) -> None:
        """Begin anew. A weak ETag must not be used in If-Range (RFC 9110, 13.1.5)."""
        etag = response.headers.get("ETag", "")
        with self.writing(self.path):
            self.path.write_bytes(b"")
            self._note.write_text(etag if etag.startswith('"') else "", encoding="latin-1", errors="replace")

    @contextlib.contextmanager
    def appending(self) -> Iterator[Callable[[bytes], None]]:
        """A function that writes at the end. Unbuffered, so that closing cannot fail on a full disk."""
        with self.writing(self.path):
            file = self.path.open("ab", buffering=0)

        def write(data: bytes) -> None:
            with self.writing(self.path):
                left = memoryview(data)
                while left:
                    left = left[file.write(left) :]

        with file:
            yield write

    def become(self, target: Path) -> None:
        """Give the finished file its name."""
        with self.writing(target):
            self.path.replace(target)
            self._note.unlink(missing_ok=True)

    def remove(self) -> None:
        """Forget what was downloaded."""
        with self.writing(self.path):
            self.path.unlink(missing_ok=True)
            self._note.unlink(missing_ok=True)


def _download(location: Location, part: _Part, session: requests.Session, progress: Progress) -> None:
    """Append to *part* until it is whole, over as many connections as make headway."""
    where = redact(location.url or "")
    fruitless = 0
    while True:
        before = part.size()
        with reaching(where):
            if _download_once(location, part, session, progress):
                return
        fruitless = 0 if part.size() > before else fruitless + 1
        if fruitless >= _TRIES:
            raise UnreachableError(
                f"{where}: the connection was cut {_TRIES} times without progress, at {part.size()} bytes",
                hint="Try again: the download goes on where it stopped. Check the network or the proxy.",
            )
        if fruitless:
            time.sleep(_PAUSE * 2**fruitless)


def _download_once(location: Location, part: _Part, session: requests.Session, progress: Progress) -> bool:
    """One connection; True when the file is whole."""
    have = part.size()
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if validator := part.validator():
            headers["If-Range"] = validator
    with session.get(location.url or "", headers=headers, stream=True) as response:
        if response.status_code == 416 and have:
            whole = response.headers.get("Content-Range", "") == f"bytes */{have}"
            if not whole:
                part.start(response)
            return whole
        response.raise_for_status()
        shape = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if response.status_code == 206 and shape and int(shape[1]) == have:
            total = int(shape[3]) if shape[3] != "*" else None
        else:
            part.start(response)
            have = 0
            length = response.headers.get("Content-Length", "")
            total = int(length) if length.isdecimal() and response.status_code == 200 else None
        _check_size(location, total)
        return _append(location, part, response, have, total, progress)


def _append(
    location: Location, part: _Part, response: requests.Response, have: int, total: int | None, progress: Progress
) -> bool:
    """Write the body behind the *have* bytes; False when it was cut before *total*."""
    import requests

    limit = total or location.size or _MAX_SIZE
    progress(have, total)
    pieces = response.iter_content(_PIECE)
    with part.appending() as write:
        while True:
            try:
                piece = next(pieces, b"")
            except (requests.RequestException, OSError):
                return False
            if not piece:
                return total is None or have == total
            write(piece)
            have += len(piece)
            if have > limit:
                raise PinError(f"{location.filename}: the server sends more than {limit} bytes", hint=_HINT)
            progress(have, total)


def _check_size(location: Location, total: int | None) -> None:
    if None not in (location.size, total) and location.size != total:
        raise PinError(
            f"{location.filename}: the server announces {total} bytes, the index {location.size}", hint=_HINT
        )


def _check(path: Path, location: Location) -> None:
    try:
        found = sha256_of(path)
    except OSError as error:
        raise TreeError(f"{path}: cannot be read ({error.strerror})", hint="Check find-links and the cache.") from error
    if found == location.sha256:
        return
    source = redact(location.url) if location.url else str(path)
    raise PinError(
        f"{location.filename}: the file from {source} has sha256 {found}, the target pins {location.sha256}",
        hint=_HINT,
    )


@contextlib.contextmanager
def _locked(target: Path, cache: Cache, waiting: Callable[[], None] | None) -> Iterator[None]:
    """Hold the lock of *target* across processes. The lock file stays: removing one is a race."""
    lock = target.with_name(target.name + ".lock")
    with cache.writing(lock):
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("ab")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting:
                waiting()
            with cache.writing(lock):
                fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            raise cache.error(error, lock) from error
        yield
