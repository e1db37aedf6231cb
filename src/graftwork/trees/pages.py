"""Pages of package indexes in the cache, each with what revalidates it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from graftwork.errors import UnreachableError, redact
from graftwork.trees.cache import Cache
from graftwork.trees.session import reaching

if TYPE_CHECKING:
    import requests

_KEPT = ("Content-Type", "ETag", "Last-Modified")
_HINT = "Run it once without --offline."


class PageCache:
    """The last answer for each page, below the cache's root; *offline* takes it as it is and asks nobody.

    ``moved_bytes`` counts bodies after content decoding, ``requests`` the answers. Conditional requests are
    those of RFC 9110, 13.1; a server without validators sends the whole page each time.
    """

    def __init__(self, cache: Cache, *, offline: bool = False) -> None:
        self.offline = offline
        self.moved_bytes = 0
        self.requests = 0
        self._cache = cache

    def get(self, session: Callable[[], requests.Session], url: str, accept: str) -> requests.Response:
        """The page at *url* (without credentials); the answer may be an error of the server, which is not kept.

        UnreachableError when the server cannot be reached, or the page is not here and *offline* is set.
        """
        where = redact(url)
        kept = self._load(url, accept)
        if self.offline:
            if kept is None:
                raise UnreachableError(f"{where}: not in the cache, and --offline asks nobody", hint=_HINT)
            return kept
        headers = {"Accept": accept}
        if kept is not None:
            headers |= _conditions(kept)
        with reaching(where):
            answer = session().get(url, headers=headers)
        self.requests += 1
        self.moved_bytes += len(answer.content)
        if answer.status_code == 304 and kept is not None:
            return kept
        if answer.status_code == 200:
            self._store(url, accept, answer)
        return answer

    def _load(self, url: str, accept: str) -> requests.Response | None:
        """The kept answer as requests would give it; None when there is none or it was written by another version."""
        import requests

        data = self._cache.recall("pages", _key(url, accept))
        if data is None:
            return None
        try:
            kept = json.loads(data)
            answer = requests.Response()
            answer.status_code, answer.url = 200, url
            answer.headers.update({str(name): str(value) for name, value in kept["headers"].items()})
            answer.encoding = requests.utils.get_encoding_from_headers(answer.headers)
            answer._content = str(kept["body"]).encode("utf-8")
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        return answer

    def _store(self, url: str, accept: str, answer: requests.Response) -> None:
        try:
            body = answer.content.decode("utf-8")
        except UnicodeDecodeError:
            return  # both forms of an index page are UTF-8; another page is not worth keeping
        headers = {name: answer.headers[name] for name in _KEPT if name in answer.headers}
        self._cache.keep("pages", _key(url, accept), json.dumps({"headers": headers, "body": body}).encode())


def _key(url: str, accept: str) -> str:
    return hashlib.sha256(f"{accept} {url}".encode()).hexdigest()


def _conditions(kept: requests.Response) -> dict[str, str]:
    """Headers by which a server may answer 304; the ETag is the stronger one."""
    if etag := kept.headers.get("ETag"):
        return {"If-None-Match": etag}
    modified = kept.headers.get("Last-Modified")
    return {"If-Modified-Since": modified} if modified else {}
