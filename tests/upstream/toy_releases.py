"""Releases of the toy engine on a package index of this process: what each did to the lines that the patch needs."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toys import TOY_PATCH, TOY_SOURCE, Toy
from trees.conftest import FileServer

from graftwork.trees.cache import Cache
from graftwork.trees.index import PackageIndex
from graftwork.trees.pages import PageCache
from graftwork.trees.pipconf import PipSettings
from graftwork.trees.session import open_session

PATCH = (
    TOY_PATCH
    + """
[[obsolete_when]]
file = "toy/pool.py"
defines = "smaller_of"
reason = "upstream takes the smaller one"

[[not_needed]]
versions = "<0.9"
reason = "there is no padding yet"
"""
)
_INSERTED = "        count = min(rows, padded)\n\n        _toy_clip = count < rows\n"
SOURCES = {
    "0.7": TOY_SOURCE,
    "0.8": TOY_SOURCE,
    "0.9": TOY_SOURCE.replace("if self.is_small():", "if self.small:"),
    "1.0": TOY_SOURCE,
    "1.1": TOY_SOURCE.replace("class Pool:", "\n\nOTHER = 3\n\n\nclass Pool:").replace(
        "count = rows", "count = (rows)"
    ),
    "1.2": TOY_SOURCE.replace("count = rows", "count = int(rows)"),
    "1.3": TOY_SOURCE + "\n\ndef smaller_of(one, other):\n    return min(one, other)\n",
    "1.4": TOY_SOURCE.replace("        count = rows\n\n", _INSERTED),
    "1.5": TOY_SOURCE.replace("count = rows", "count == = rows"),
    "2.0rc1": TOY_SOURCE,
}
STATES = {
    "0.7": "not-needed",
    "0.8": "not-needed",
    "0.9": "drifted",
    "1.0": "pending",
    "1.1": "pending",
    "1.2": "drifted",
    "1.3": "obsolete",
    "1.4": "applied",
    "1.5": "drifted",
}


def wheel(version: str, source: str) -> bytes:
    """A wheel of the toy engine with a right RECORD, and filler that nobody has a reason to read."""
    files = {
        "toy/__init__.py": b"",
        "toy/_version.py": f"__version__ = '{version}'\n".encode(),
        "toy/pool.py": source.encode(),
        "toy/filler.bin": hashlib.shake_256(version.encode()).digest(1 << 20),
        f"toy-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: toy\nVersion: {version}\n".encode(),
    }
    record = ""
    for name, data in files.items():
        value = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={value},{len(data)}\n"
    files[f"toy-{version}.dist-info/RECORD"] = f"{record}toy-{version}.dist-info/RECORD,,\n".encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), data)
    return buffer.getvalue()


class ToyIndex:
    """An index that serves toy wheels; ``yanked`` names versions that it marks so."""

    def __init__(self, server: FileServer) -> None:
        self.server = server
        self.yanked: set[str] = set()
        for version, source in SOURCES.items():
            self.add(f"toy-{version}-py3-none-any.whl", wheel(version, source))

    def add(self, filename: str, data: bytes) -> None:
        self.server.files[f"/files/{filename}"] = data
        self.publish()

    def remove(self, filename: str) -> None:
        del self.server.files[f"/files/{filename}"]
        self.publish()

    def publish(self) -> None:
        """Write the index page anew, with a new ETag."""
        rows = []
        for path, data in self.server.files.items():
            if path.startswith("/files/"):
                name = path.removeprefix("/files/")
                row = {"filename": name, "url": path, "hashes": {"sha256": hashlib.sha256(data).hexdigest()}}
                rows.append({**row, "size": len(data), "yanked": name.split("-")[1] in self.yanked})
        page = {"meta": {"api-version": "1.1"}, "name": "toy", "files": rows, "versions": []}
        self.server.files["/simple/toy/"] = json.dumps(page).encode()
        self.server.types["/simple/toy/"] = "application/vnd.pypi.simple.v1+json"

    @property
    def url(self) -> str:
        return f"{self.server.origin}/simple"

    def asked(self) -> list[str]:
        """The paths of all requests so far; the list starts anew."""
        paths = [path for path, _ in self.server.log]
        self.server.log.clear()
        return paths

    def client(self, cache: Cache, *, offline: bool = False) -> tuple[PackageIndex, PageCache]:
        pages = PageCache(cache, offline=offline)
        index = PackageIndex(PipSettings(index_url=self.url, retries=0), pages=pages)
        if not offline:
            index.session = open_session(index.settings, backoff=0)
        return index, pages


@contextmanager
def toy_index() -> Iterator[ToyIndex]:
    server = FileServer()
    try:
        yield ToyIndex(server)
    finally:
        server.close()


def toy_catalog(root: Path) -> Toy:
    toy = Toy(root)
    toy.patch("rows", PATCH)
    return toy
