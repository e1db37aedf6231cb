"""A real web server with faults on order, and small wheels."""

from __future__ import annotations

import base64
import hashlib
import time
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from serving import Serving

from graftwork.trees.cache import Cache, cache_folder


class FileServer:
    """Serves ``files`` by path. Faults: see the attributes; those that are lists are used up one a request."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.types: dict[str, str] = {}
        self.log: list[tuple[str, dict[str, str]]] = []
        self.ranges = True
        self.suffix_ranges = True
        self.length = True
        self.cuts: list[int] = []
        self.statuses: list[int] = []
        self.redirects: dict[str, str] = {}
        self.etag = '"one"'
        self.extra_headers: dict[str, str] = {}
        self.delay = 0.0
        self._server = Serving(self.answer)
        self.origin, self.close = self._server.origin, self._server.close

    def asked(self, path: str) -> list[dict[str, str]]:
        """The headers (lower-case names) of the requests for *path*."""
        return [headers for asked, headers in self.log if asked == path]

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        self.log.append((path, {name.lower(): value for name, value in request.headers.items()}))
        if self.statuses and (status := self.statuses.pop(0)) != 200:
            return self._head(request, status, 0, self.extra_headers)
        if path in self.redirects:
            return self._head(request, 302, 0, {"Location": self.redirects[path]})
        if path not in self.files:
            return self._head(request, 404, 0, {})
        data = self.files[path]
        status, first, last = self._span(request, data)
        body = data[first : last + 1]
        headers = {"ETag": self.etag, "Content-Type": self.types.get(path, "application/octet-stream")}
        if status == 206:
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        if status == 416:
            headers["Content-Range"], body = f"bytes */{len(data)}", b""
        self._head(request, status, len(body), headers)
        if self.delay:
            time.sleep(self.delay)
        request.wfile.write(body[: self.cuts.pop(0)] if self.cuts else body)
        return None

    def _span(self, request: BaseHTTPRequestHandler, data: bytes) -> tuple[int, int, int]:
        wish = request.headers.get("Range", "")
        condition = request.headers.get("If-Range")
        if not self.ranges or not wish or (condition and condition != self.etag):
            return 200, 0, len(data) - 1
        first, _, last = wish.removeprefix("bytes=").partition("-")
        if not first:
            return (
                (206, max(0, len(data) - int(last)), len(data) - 1) if self.suffix_ranges else (200, 0, len(data) - 1)
            )
        if int(first) >= len(data):
            return 416, 0, -1
        return 206, int(first), min(int(last or len(data)), len(data) - 1)

    def _head(self, request: BaseHTTPRequestHandler, status: int, length: int, headers: dict[str, str]) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        if self.length:
            request.send_header("Content-Length", str(length))
        request.send_header("Connection", "close")
        request.end_headers()


@pytest.fixture
def server() -> Iterator[FileServer]:
    running = FileServer()
    yield running
    running.close()


@pytest.fixture
def other_server() -> Iterator[FileServer]:
    running = FileServer()
    yield running
    running.close()


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


SOURCES = {
    "eng/__init__.py": b"",
    "eng/_version.py": b"__version__ = version = '1.2.3'\n",
    "eng/run.py": b"def run():\r\n    return 'crlf stays'\r\n",
    "eng/large.py": b"".join(b"x%d = %d\n" % (i, i * i) for i in range(4000)),
    "eng-1.2.3.dist-info/METADATA": b"Metadata-Version: 2.1\nName: eng\nVersion: 1.2.3\n\nVersion: 9\n",
}


def record_of(files: dict[str, bytes], record: str = "eng-1.2.3.dist-info/RECORD") -> bytes:
    rows = []
    for name, data in files.items():
        value = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={value},{len(data)}\n")
    return ("".join(rows) + f"{record},,\n").encode()


@pytest.fixture
def make_wheel(tmp_path: Path) -> Callable[..., Path]:
    """``make_wheel(files, record=None, name=...)``: a wheel with a right RECORD unless one is given."""

    def make(
        files: dict[str, bytes] = SOURCES, *, record: bytes | None = None, name: str = "eng-1.2.3-py3-none-any.whl"
    ) -> Path:
        path = tmp_path / name
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, data in files.items():
                archive.writestr(member, data)
            archive.writestr("eng-1.2.3.dist-info/RECORD", record_of(files) if record is None else record)
        return path

    return make


@pytest.fixture(scope="session")
def shared_cache() -> Cache:
    """The user's own cache: real wheels are fetched once, not once a run."""
    return Cache(cache_folder())
