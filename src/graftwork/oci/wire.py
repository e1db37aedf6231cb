"""One HTTP exchange with a registry: proxies, certificates, counted bodies, and failures of one kind."""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from graftwork.errors import GraftworkError, UsageError, redact
from graftwork.oci.reference import is_loopback
from graftwork.oci.traffic import Traffic

if TYPE_CHECKING:
    import requests
    from requests.adapters import HTTPAdapter

CERTS = (Path("/etc/docker/certs.d"), Path("/etc/containers/certs.d"))
_BLOCK = 1 << 17  # bytes that are handed to the socket at once


class Readable(Protocol):
    """What a request's body is read from."""

    def read(self, size: int, /) -> bytes: ...
    def close(self) -> None: ...


OpenAt = Callable[[int], Readable]


class CutError(Exception):
    """The connection failed.

    ``before``: before anything was sent. ``tls``: no TLS was spoken; ``untrusted``: it was, by somebody unknown.
    """

    def __init__(self, cause: str, *, before: bool, tls: bool = False, untrusted: bool = False) -> None:
        super().__init__(cause)
        self.before, self.tls, self.untrusted = before, tls, untrusted


class Body:
    """*size* bytes of a source from *start*, sent without being held; can be sent again."""

    def __init__(self, open_at: OpenAt, start: int, size: int) -> None:
        self._open_at, self._start, self._size = open_at, start, size
        self._file: Readable | None = None
        self._left = size
        self.count: Callable[[int], None] = lambda size: None
        self.failure: Exception | None = None  # of the source, which is no failure of the connection

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:  # requests takes only what can be iterated for a stream
        while data := self.read(_BLOCK):
            yield data

    def read(self, size: int = -1) -> bytes:
        """The next bytes. UsageError if the source is shorter than was said."""
        if not self._left:
            return b""
        try:
            if self._file is None:
                self._file = self._open_at(self._start)
            data = self._file.read(self._left if size < 0 else min(size, self._left))
            if not data:
                raise UsageError(f"the source of an upload ended {self._left} bytes early", hint="Did the file change?")
        except Exception as error:
            self.failure = error
            raise
        self._left -= len(data)
        self.count(len(data))
        return data

    def rewind(self) -> None:
        """Go back to the start."""
        self.close()
        self._left = self._size

    def close(self) -> None:
        """Close the source."""
        if self._file is not None:
            self._file.close()
            self._file = None


@dataclass
class Reply:
    """A registry's answer. ``data`` is its body, unless it is read as a stream."""

    method: str
    url: str
    status: int
    headers: Mapping[str, str]
    data: bytes = b""
    _response: Any = field(default=None, repr=False)
    _traffic: Traffic = field(default_factory=Traffic, repr=False)

    def read(self, size: int, /) -> bytes:
        """At most *size* bytes of the stream; b'' at its end. CutError if the connection fails."""
        with failures():
            data: bytes = self._response.raw.read(size, decode_content=False)
        self._traffic.add(bytes_in=len(data))
        return data

    def close(self) -> None:
        """End the stream, read or not."""
        if self._response is not None:
            self._response.close()

    def __enter__(self) -> Reply:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Wire:
    """A connection pool that knows the certificates of one registry."""

    def __init__(self, registry: str, traffic: Traffic, certs: tuple[Path, ...] = CERTS) -> None:
        self._registry, self._traffic, self._certs = registry, traffic, certs
        self._session: requests.Session | None = None
        self._is_secure = False
        self._lock = threading.Lock()

    def exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | Body | None, timeout: tuple[float, float]
    ) -> Reply:
        """Send one request and read the head of its answer. Follows no redirect. CutError if the connection fails."""
        with self._lock:
            if self._session is None:
                self._session = self._open()
            if not self._is_secure and url.startswith("https:"):
                self._secure(self._session)
        self._traffic.add(requests=1)
        if isinstance(body, Body):
            body.count = lambda size: self._traffic.add(bytes_out=size)
        elif body:
            self._traffic.add(bytes_out=len(body))
        # Go's and so Docker's clients never use a proxy for this machine; requests would.
        direct: Any = {"http": None, "https": None, "all": None} if is_loopback(urlsplit(url).netloc) else None
        data: Any = body if body else None
        try:
            with failures():
                response = self._session.request(
                    method,
                    url,
                    headers={"Accept-Encoding": "identity", **headers},
                    data=data,
                    timeout=timeout,
                    proxies=direct,
                    stream=True,
                    allow_redirects=False,
                )
        except CutError:
            if isinstance(body, Body) and body.failure is not None:
                raise body.failure from None
            raise
        return Reply(method, url, response.status_code, response.headers, b"", response, self._traffic)

    def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            self._session.close()

    def _open(self) -> requests.Session:
        from http.cookiejar import DefaultCookiePolicy

        import requests

        from graftwork import __version__

        session = requests.Session()
        session.headers["User-Agent"] = f"graftwork/{__version__}"
        session.auth = lambda request: request  # else requests adds what ~/.netrc has for any host on the way
        session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
        session.mount("http://", _adapter(None))
        return session

    def _secure(self, session: requests.Session) -> None:
        """Read the certificates: once a connection needs them, for that takes longer than most requests."""
        session.mount("https://", _adapter(_context([])))
        folders = [folder / self._registry for folder in self._certs if (folder / self._registry).is_dir()]
        if folders:
            session.mount(f"https://{self._registry}/", _adapter(_context(folders)))
        self._is_secure = True


def _adapter(context: ssl.SSLContext | None) -> HTTPAdapter:
    from requests.adapters import HTTPAdapter

    class Adapter(HTTPAdapter):
        def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **more: Any) -> None:
            super().init_poolmanager(connections, maxsize, block, **{**more, **options})

        def proxy_manager_for(self, proxy: str, **more: Any) -> Any:
            return super().proxy_manager_for(proxy, **{**more, **options})

    options: dict[str, Any] = {"blocksize": _BLOCK, **({"ssl_context": context} if context else {})}
    return Adapter(pool_maxsize=16)


def _context(folders: list[Path]) -> ssl.SSLContext:
    """The system's authorities and those of certs.d folders, with their client certificates (dockerd's rules).

    A bundle that the environment names replaces the system's; requests adds it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not (os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")):
        context.load_default_certs()
    for folder in folders:
        file = folder
        try:
            for file in sorted(folder.glob("*.crt")):
                context.load_verify_locations(file)
            for file in sorted(folder.glob("*.cert")):
                context.load_cert_chain(file, file.with_suffix(".key"))
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"cannot use the certificate {file}: {error}") from error
    return context


@contextmanager
def failures() -> Iterator[None]:
    """Turn what requests, urllib3 and sockets raise in the block into a CutError."""
    import requests
    import urllib3

    try:
        yield
    except GraftworkError:
        raise
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, UnicodeError) as error:
        inner = _innermost(error)
        connecting = (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError)
        before = isinstance(error, requests.ConnectTimeout) or isinstance(inner, connecting)
        text = str(inner).rpartition(": ")[2] if "object at 0x" in str(inner) else str(inner)
        tls = isinstance(error, requests.exceptions.SSLError) or isinstance(inner, ssl.SSLError)
        untrusted = isinstance(inner, ssl.SSLCertVerificationError)
        raise CutError(redact(text) or type(inner).__name__, before=before, tls=tls, untrusted=untrusted) from error


def _innermost(error: BaseException) -> BaseException:
    """The reason: what requests and urllib3 wrap around it names URLs with their queries."""
    for _ in range(10):
        inner = getattr(error, "reason", None) or next((a for a in error.args if isinstance(a, BaseException)), None)
        if not isinstance(inner, BaseException):
            break
        error = inner
    return error
