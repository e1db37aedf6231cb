"""A content-addressed cache on disk that builds on one machine share."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from graftwork.errors import UsageError
from graftwork.names import Sha256, sha256_hex

_FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file is larger than this process may write",
}
_HINT = "Set GRAFTWORK_CACHE to a folder that you can write to, with room for the wheels."
_CHUNK = 1 << 20


class CacheError(UsageError):
    """The cache folder cannot be used: not writable, full, or not a folder."""


def cache_folder(env: Mapping[str, str] = os.environ) -> Path:
    """``$GRAFTWORK_CACHE``, else ``$XDG_CACHE_HOME/graftwork``, else ``~/.cache/graftwork``; not created."""
    if own := env.get("GRAFTWORK_CACHE"):
        return Path(own).expanduser().absolute()
    xdg = env.get("XDG_CACHE_HOME", "")
    # XDG base directory specification: a relative value is invalid and ignored.
    if Path(xdg).is_absolute():
        return Path(xdg, "graftwork")
    try:
        return Path.home() / ".cache" / "graftwork"
    except RuntimeError as error:
        raise CacheError("no cache folder: this user has no home folder", hint=_HINT) from error


def sha256_of(path: Path) -> Sha256:
    """The file's sha256, read in pieces."""
    state = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            state.update(piece)
    return sha256_hex(state.hexdigest())


class Cache:
    """Files named by their sha256 below *root*. Every read is hashed again; a spoiled entry is a miss.

    *warn* is told of spoiled entries; by default the messages collect in ``warnings``.
    """

    def __init__(self, root: Path | None = None, *, warn: Callable[[str], None] | None = None) -> None:
        self.root = cache_folder() if root is None else root.absolute()
        self.warnings: list[str] = []
        self.warn = warn or self.warnings.append

    def path(self, sha256: Sha256) -> Path:
        """Where the entry lies or would lie. Its bytes are not checked: see ``verified``."""
        return self.root / "sha256" / sha256[:2] / sha256_hex(sha256)

    def get(self, sha256: Sha256) -> bytes | None:
        """The entry's bytes, or None when it is missing or spoiled (then removed, with a warning)."""
        path = self.path(sha256)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self.error(error, path) from error
        found = hashlib.sha256(data).hexdigest()
        if found == sha256:
            return data
        self._drop(path, sha256, found)
        return None

    def verified(self, sha256: Sha256) -> Path | None:
        """The path of a whole, unspoiled entry, or None. For files too large to hold in memory."""
        path = self.path(sha256)
        try:
            found = sha256_of(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self.error(error, path) from error
        if found == sha256:
            return path
        self._drop(path, sha256, found)
        return None

    def put(self, data: bytes) -> Sha256:
        """Store *data* and return its sha256. Safe beside other processes: the entry appears whole."""
        sha256 = sha256_hex(hashlib.sha256(data).hexdigest())
        self._write(self.path(sha256), data)
        return sha256

    def recall(self, kind: str, key: str) -> bytes | None:
        """What was kept as *key* among the *kind*; None when missing or spoiled (then removed, with a warning)."""
        path = self.root / kind / key[:2] / key
        try:
            sha256, data = path.read_bytes().split(b"\n", 1)
        except (FileNotFoundError, ValueError):
            return None
        except OSError as error:
            raise self.error(error, path) from error
        found = hashlib.sha256(data).hexdigest()
        if found.encode() == sha256:
            return data
        self._drop(path, sha256.decode(errors="replace"), found)
        return None

    def keep(self, kind: str, key: str, data: bytes) -> None:
        """Keep *data* as *key* among the *kind*, with its own sha256 in front: the name says nothing of the bytes."""
        self._write(self.root / kind / key[:2] / key, hashlib.sha256(data).hexdigest().encode() + b"\n" + data)

    def _write(self, path: Path, data: bytes) -> None:
        """Write *path* so that it appears whole; CacheError if that cannot be done."""
        with self.writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            fd, name = tempfile.mkstemp(prefix=".new-", dir=path.parent)
            temporary = Path(name)
            try:
                with os.fdopen(fd, "wb") as file:
                    file.write(data)
                temporary.chmod(0o644)
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise

    @contextlib.contextmanager
    def writing(self, path: Path) -> Iterator[None]:
        """Turn every OSError of the block into a CacheError that names *path*."""
        try:
            yield
        except OSError as error:
            raise self.error(error, path) from error

    def error(self, error: OSError, path: Path) -> CacheError:
        """What the user is told when the cache cannot be used."""
        reason = _FULL.get(error.errno or 0) or error.strerror or str(error)
        return CacheError(f"the cache cannot be used: {path}: {reason}", hint=_HINT)

    def _drop(self, path: Path, sha256: str, found: str) -> None:
        removed = "removed"
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            removed = f"it could not be removed ({error.strerror})"
        self.warn(f"spoiled cache entry {path}: its sha256 is {found}, not {sha256}; {removed}")
