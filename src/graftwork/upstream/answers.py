"""Answers of the GitHub API kept on disk: asked again by ETag, and all there is with ``--offline``."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from graftwork.oci.layout import replace_file
from graftwork.trees.cache import Cache


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer: ``url`` is where it came from in the end, ``day`` when the server last stood by it (UTC).

    ``next`` is the URL of the next page, ``cached`` whether nothing was asked of the server.
    """

    url: str
    status: int
    body: str
    day: str
    etag: str = ""
    next: str = ""
    cached: bool = False


class Answers:
    """Answers below the shared cache's folder, by request. A spoiled entry is a miss, with a warning."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def get(self, key: str) -> Answer | None:
        """The kept answer, or None."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._cache.error(error, path) from error
        try:
            return msgspec.json.decode(data, type=Answer)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._cache.warn(f"spoiled cache entry {path}: not an answer; it is asked for anew")
            return None

    def put(self, key: str, answer: Answer) -> None:
        """Keep *answer*; it appears whole. Its folder is the user's own: answers may be of private repositories."""
        path = self._path(key)
        with self._cache.writing(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path, msgspec.json.encode(answer))

    def _path(self, key: str) -> Path:
        return self._cache.root / "github" / f"{hashlib.sha256(key.encode()).hexdigest()}.json"
