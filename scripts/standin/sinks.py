"""Where a stand-in goes: an OCI layout folder, or a registry on this machine's loopback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from standin.debian import CannotMake
from standin.image import Document
from standin.layers import Blob

if TYPE_CHECKING:
    import requests

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Layout:
    """An OCI image layout with one named image."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.blobs = folder / "blobs/sha256"
        self.blobs.mkdir(parents=True, exist_ok=True)

    def layer(self, blob: Blob) -> None:
        """Move the layer's file in."""
        blob.path.replace(self.blobs / blob.digest.partition(":")[2])

    def config(self, document: Document) -> None:
        """Write the blob."""
        (self.blobs / document.digest.partition(":")[2]).write_bytes(document.data)

    def manifest(self, document: Document, *, top: bool) -> None:
        """Write the blob; the top one is named in index.json."""
        self.config(document)
        if top:
            named = {**document.descriptor, "annotations": {"org.opencontainers.image.ref.name": self.name}}
            (self.folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [named]}), "utf-8")
            (self.folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}', "utf-8")


class LocalRegistry:
    """A repository of a plain-HTTP registry on loopback; its name must say that it holds stand-ins."""

    def __init__(self, reference: str) -> None:
        import requests

        host, _, rest = reference.partition("/")
        self.repository, _, self.tag = rest.partition(":")
        if urlsplit(f"//{host}").hostname not in _LOOPBACK:
            raise CannotMake(f"a stand-in is pushed to a registry on loopback only, not to {host}")
        if "standin" not in self.repository or not self.tag:
            raise CannotMake(f"name the stand-in HOST:PORT/…standin…:TAG, not {reference}")
        self.base = f"http://{host}/v2/{self.repository}"
        self.session = requests.Session()
        self.session.trust_env = False  # no proxy, no netrc: the registry is on this machine

    def layer(self, blob: Blob) -> None:
        """Upload the layer's file, then remove it."""
        if self.session.head(f"{self.base}/blobs/{blob.digest}").status_code != 200:
            with blob.path.open("rb") as data:
                place = self._ok("POST", f"{self.base}/blobs/uploads/").headers["Location"]
                self._ok("PUT", place, params={"digest": blob.digest}, data=data)
        blob.path.unlink()

    def config(self, document: Document) -> None:
        """Upload the blob."""
        place = self._ok("POST", f"{self.base}/blobs/uploads/").headers["Location"]
        self._ok("PUT", place, params={"digest": document.digest}, data=document.data)

    def manifest(self, document: Document, *, top: bool) -> None:
        """Put the manifest under its digest, the top one under the tag."""
        name = self.tag if top else document.digest
        headers = {"Content-Type": document.media_type}
        self._ok("PUT", f"{self.base}/manifests/{name}", data=document.data, headers=headers)

    def _ok(self, method: str, url: str, **options: object) -> requests.Response:
        answer = self.session.request(method, url, timeout=(10, 900), **options)  # type: ignore[arg-type]
        if not answer.ok:
            raise CannotMake(f"{method} {urlsplit(url).path}: {answer.status_code} {answer.text[:300]}")
        return answer
