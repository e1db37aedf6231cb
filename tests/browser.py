"""A headless Chromium that reads a page and takes its picture; tests that need it are skipped where there is none."""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
]
_LIMIT = 240  # seconds for one start; a busy machine is no failure
DARK = "--blink-settings=preferredColorScheme=0"


def chromium() -> str:
    """The browser's path; skips the test where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    pytest.skip("no Chromium on this machine (scripts/install-services installs it)")


def _run(page: Path, *flags: str) -> bytes:
    """Open *page* in a fresh profile; started again once if it hangs."""
    browser = chromium()
    for last in (False, True):
        with tempfile.TemporaryDirectory(prefix="graftwork-chromium-", ignore_cleanup_errors=True) as profile:
            command = [browser, *FLAGS, f"--user-data-dir={profile}", *flags, page.absolute().as_uri()]
            try:
                return subprocess.run(command, capture_output=True, check=True, timeout=_LIMIT).stdout
            except subprocess.TimeoutExpired:
                if last:
                    raise
    raise AssertionError("unreachable")


def dom(page: Path, *flags: str) -> str:
    """The page's tree as the browser made it of the text."""
    return _run(page, *flags, "--dump-dom").decode("utf-8")


def picture(page: Path, out: Path, *flags: str, width: int = 1240, height: int = 900) -> Path:
    """A PNG of the page's first screen."""
    _run(page, *flags, f"--window-size={width},{height}", f"--screenshot={out}")
    return out


class Cells(HTMLParser):
    """The heat map's cells in a page: (patch, version) -> (state, text); and every tag's name, with attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.cells: dict[tuple[str, str], tuple[str, str]] = {}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: tuple[str, str] | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag == "td" and "data-patch" in found:
            self._open = (found["data-patch"] or "", found["data-version"] or "")
            self.cells[self._open] = (found["data-state"] or "", "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "td":
            self._open = None

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._open:
            state, text = self.cells[self._open]
            self.cells[self._open] = (state, text + data)


def colours(png: Path) -> dict[str, int]:
    """How many pixels of each colour (``#rrggbb``) an 8-bit PNG without interlacing has (W3C PNG, 9: filters)."""
    data = png.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n", "not a PNG"
    width, height, depth, kind, *_, interlaced = struct.unpack(">IIBBBBB", data[16:29])
    assert (depth, interlaced) == (8, 0) and kind in (2, 6), "not 8-bit RGB"
    size, packed, at = {2: 3, 6: 4}[kind], b"", 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        if data[at + 4 : at + 8] == b"IDAT":
            packed += data[at + 8 : at + 8 + length]
        at += 12 + length
    raw, stride = zlib.decompress(packed), width * size
    before, found = bytearray(stride), dict[str, int]()
    for row in range(height):
        start = row * (stride + 1)
        line = _unfiltered(raw[start], bytearray(raw[start + 1 : start + 1 + stride]), before, size)
        for x in range(0, stride, size):
            name = f"#{line[x : x + 3].hex()}"
            found[name] = found.get(name, 0) + 1
        before = line
    return found


def _unfiltered(kind: int, line: bytearray, above: bytearray, size: int) -> bytearray:
    for x in range(len(line)):
        left = line[x - size] if x >= size else 0
        corner = above[x - size] if x >= size else 0
        if kind == 1:
            guess = left
        elif kind == 2:
            guess = above[x]
        elif kind == 3:
            guess = (left + above[x]) // 2
        elif kind == 4:
            guess = min((left, above[x], corner), key=lambda each: abs(left + above[x] - corner - each))
        else:
            break
        line[x] = (line[x] + guess) & 255
    return line
