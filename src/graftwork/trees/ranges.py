"""Parts of a file on a web server, by HTTP ranges, in the shape that remotezip reads from."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

from graftwork.errors import GraftworkError, TreeError, UnreachableError, redact
from graftwork.trees.session import reaching

if TYPE_CHECKING:
    import requests

# Holds the zip directory (393 KB) and most of RECORD (156 KB) of SGLang 0.5.15.post1. A larger directory
# costs one more request for what is missing; nothing is moved twice.
TAIL = 512 * 1024
_MAX_SPAN = 80 << 20  # bytes; no file that is patched is larger, so a wish for more comes from a broken archive
_TRIES = 4
_PIECE = 1 << 16
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class RangesRefused(GraftworkError):
    """The server does not serve parts of the file; the caller downloads the whole."""

    exit_code = 6


class RangeReader:
    """Reads spans of the file at *url* and keeps what it has of the file's end.

    ``moved_bytes`` counts the bytes of bodies, ``requests`` the answers, both with those of failed tries.
    """

    def __init__(self, url: str, session: requests.Session, *, tail: int = TAIL) -> None:
        self.where = redact(url)
        self.moved_bytes = 0
        self.requests = 0
        self._url, self._session, self._tail_size = url, session, tail
        self._size = -1
        self._start = 0  # of the kept end
        self._end = b""

    def fetch(self, span: tuple[int, int | None], stream: bool = False) -> Any:
        """A ``remotezip.PartialBuffer`` of the bytes first..last (inclusive), or of the end when first < 0."""
        from remotezip import PartialBuffer

        self.prepare()
        first, last = span
        if first < 0 or last is None:
            first, last = self._start, self._size - 1
        if not 0 <= first <= last < self._size or last - first >= _MAX_SPAN:
            raise TreeError(
                f"{self.where}: damaged zip archive: it points to the bytes {first} to {last} of {self._size}"
            )
        data = self._bytes(first, last)
        return PartialBuffer(io.BytesIO(data), first, len(data), stream=False)

    def _bytes(self, first: int, last: int) -> bytes:
        """From the kept end where possible; what borders on it is fetched and kept with it."""
        if last < self._start - 1:
            return self._range(first, last)
        if first < self._start:
            self._end = self._range(first, self._start - 1) + self._end
            self._start = first
        return self._end[first - self._start : last + 1 - self._start]

    def prepare(self) -> None:
        """Fetch the end once. To be called before zipfile is, which takes an OSError here for a broken archive.

        Servers without suffix ranges (optional in RFC 9110, 14.1.2) answer with the whole: then by its length.
        """
        if self._size >= 0:
            return
        answer = self._ask(f"bytes=-{self._tail_size}", None)
        if isinstance(answer, int):
            self._size = answer
            self._start = max(0, answer - self._tail_size)
            self._end = self._range(self._start, answer - 1)
        else:
            self._end, self._start, self._size = answer

    def _range(self, first: int, last: int) -> bytes:
        answer = self._ask(f"bytes={first}-{last}", (first, last))
        if isinstance(answer, int):
            raise RangesRefused(f"{self.where}: the server sends the whole file instead of a range")
        return answer[0]

    def _ask(self, wish: str, expected: tuple[int, int] | None) -> tuple[bytes, int, int] | int:
        """``(bytes, first, size of the file)``, or the file's size when the server ignores the range."""
        for left in reversed(range(_TRIES)):
            try:
                with reaching(self.where):
                    return self._ask_once(wish, expected)
            except _Cut as cut:
                if not left:
                    raise UnreachableError(
                        f"{self.where}: the connection was cut {_TRIES} times; the last time after {cut.args[0]} bytes",
                        hint="Try again; check the network or the proxy.",
                    ) from cut
        raise AssertionError("unreachable")

    def _ask_once(self, wish: str, expected: tuple[int, int] | None) -> tuple[bytes, int, int] | int:
        headers = {"Range": wish, "Accept-Encoding": "identity"}
        with self._session.get(self._url, headers=headers, stream=True) as response:
            self.requests += 1
            if response.status_code in (416, 501):
                raise RangesRefused(f"{self.where}: the server answered {response.status_code} to a range")
            response.raise_for_status()
            if response.status_code != 206:
                length = response.headers.get("Content-Length", "")
                if not length.isdecimal() or int(length) == 0:
                    raise RangesRefused(f"{self.where}: the server ignores ranges and does not say the file's size")
                if expected is None and int(length) <= self._tail_size:
                    return self._body(response, int(length)), 0, int(length)
                return int(length)
            shape = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if not shape:
                raise RangesRefused(f"{self.where}: the server answers a range with no usable Content-Range")
            first, last, size = (int(number) for number in shape.groups())
            self._check_answer(first, last, size, expected)
            return self._body(response, last - first + 1), first, size

    def _check_answer(self, first: int, last: int, size: int, expected: tuple[int, int] | None) -> None:
        if expected is None:
            wanted = (max(0, size - self._tail_size), size - 1)
        else:
            wanted = expected
            if size != self._size:
                raise TreeError(f"{self.where}: changed while it was read: {self._size} bytes before, {size} now")
        if (first, last) != wanted:
            raise RangesRefused(f"{self.where}: asked for the bytes {wanted[0]}-{wanted[1]}, got {first}-{last}")

    def _body(self, response: requests.Response, length: int) -> bytes:
        """Exactly *length* bytes: a longer body is not read on, a shorter one is a cut."""
        import requests

        parts: list[bytes] = []
        got = 0
        try:
            for piece in response.iter_content(_PIECE):
                self.moved_bytes += len(piece)
                parts.append(piece)
                got += len(piece)
                if got >= length:
                    break
        except (requests.RequestException, OSError) as error:
            raise _Cut(got) from error
        if got < length:
            raise _Cut(got)
        return b"".join(parts)[:length]


class _Cut(Exception):
    """The body ended early, after so many bytes."""
