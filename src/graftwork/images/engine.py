"""The Docker Engine through its API: an image there as a base, its files, and loading a grafted image into it.

No BuildKit and no ``docker build``. A grafted image is loaded as an archive that leaves out the layers the engine
already has (it looks a layer up before it reads it), so a 30 GB base is neither saved nor sent.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import IO, TYPE_CHECKING, Any

from graftwork.errors import MissingFile, TreeError, UnreachableError, UsageError
from graftwork.images import containerd
from graftwork.images.docker_archive import write_archive
from graftwork.images.sources import Source
from graftwork.oci.blobs import ByteStream
from graftwork.oci.canonical import canonical_json
from graftwork.oci.families import DOCKER, Document
from graftwork.oci.tarscan import Kind, Member, TarScan
from graftwork.trees.layer_facts import LayerRef
from graftwork.trees.merged import Found, Names

if TYPE_CHECKING:
    import docker

    from graftwork.images.ship import Image

_LARGEST = 64 << 20  # bytes of a file that is read
_PIECE = 1 << 20


@contextlib.contextmanager
def connected() -> Iterator[docker.DockerClient]:
    """The engine that DOCKER_HOST or the current context names; UnreachableError if none answers."""
    import docker
    import docker.errors
    import requests
    from docker.context import ContextAPI

    try:
        if os.environ.get("DOCKER_HOST"):
            client = docker.from_env()
        else:
            context = ContextAPI.get_current_context()
            client = docker.DockerClient(base_url=context.Host, tls=context.TLSConfig)
        client.ping()
    except (docker.errors.DockerException, OSError) as error:
        raise UnreachableError(f"no Docker Engine answers: {error}", hint="set DOCKER_HOST, or start it") from None
    try:
        yield client
    except docker.errors.ImageNotFound as error:
        raise MissingFile(f"the engine has no such image: {error.explanation}") from None
    except docker.errors.DockerException as error:
        raise UsageError(f"the engine refused: {getattr(error, 'explanation', '') or error}") from None
    except requests.RequestException as error:
        raise UnreachableError(f"the Docker Engine went away: {error}", hint="try again when it runs") from None
    finally:
        client.close()


def engine_source(client: docker.DockerClient, name: str) -> Source:
    """An image of the engine as a base. Its manifest is made up from its layers' diff_ids: an engine keeps none."""
    found = client.api.inspect_image(name)
    layers = list((found.get("RootFS") or {}).get("Layers") or [])
    config = {
        "architecture": found.get("Architecture", ""),
        "os": found.get("Os", ""),
        "created": found.get("Created"),
        "config": found.get("Config") or {},
        "rootfs": {"type": "layers", "diff_ids": layers},
        "history": _history(client.api.history(name), len(layers)),
    }
    config |= {key.lower(): found[key] for key in ("Variant", "Author") if found.get(key)}
    document = Document(canonical_json(config), config, DOCKER.config)
    data = {
        "schemaVersion": 2,
        "mediaType": DOCKER.manifest,
        "config": {"mediaType": DOCKER.config, "digest": document.digest, "size": len(document.raw)},
        "layers": [{"mediaType": DOCKER.layer_tar, "digest": layer, "size": 0} for layer in layers],
    }
    manifest = Document(canonical_json(data), data, DOCKER.manifest)
    blobs = _NoBlobs(f"docker:{name}", {document.digest: document.raw})
    return Source(f"docker:{name}", manifest, blobs, lambda _: manifest, layers=False)


def load(client: docker.DockerClient, image: Image, name: str) -> str:
    """Load a grafted image under *name*; returns the engine's image id. Only the payload's layer is sent.

    UnreachableError if the engine has not got the base.
    """
    import docker.errors

    grafted = image.grafted
    own = {grafted.config.data["rootfs"]["diff_ids"][-1]: image.tar}
    with tempfile.TemporaryFile() as file:
        if containerd.keeps(client):
            containerd.write_archive(file, name, image)
        else:
            write_archive(file, name, grafted.manifest, grafted.config, own, None)
        file.seek(0)
        try:
            client.images.load(file)
        except docker.errors.ImageLoadError as error:
            raise UnreachableError(
                f"the engine did not take {name}, it seems to lack layers of {grafted.input_name}: {error}",
                hint=f"docker pull {grafted.input_name} first, or write --to docker-archive:FILE and docker load it",
            ) from None
    found = client.api.inspect_image(name)
    if list(found["RootFS"]["Layers"]) != grafted.config.data["rootfs"]["diff_ids"]:
        raise TreeError(f"the engine made other layers of {name}", hint="load a full docker-archive instead")
    return str(found["Id"])


def _history(rows: list[dict[str, Any]], layers: int) -> list[dict[str, Any]]:
    """The engine's history, oldest first; left out where it cannot be matched with the layers."""
    found = []
    for row in reversed(rows):
        created = datetime.fromtimestamp(max(row.get("Created") or 0, 0), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        step = {"created": created, "created_by": row.get("CreatedBy", ""), "comment": row.get("Comment", "")}
        found.append({**step, **({} if row.get("Size") else {"empty_layer": True})})
    return found if sum("empty_layer" not in row for row in found) == layers else []


class _NoBlobs:
    """An engine gives files, not layers."""

    def __init__(self, origin: str, known: dict[str, bytes]) -> None:
        self.origin, self._known = origin, known

    def open(self, digest: str, size: int) -> ByteStream:
        import io

        if digest not in self._known:
            raise MissingFile(f"{self.origin}: an engine does not give layers", hint="use a registry or an archive")
        return io.BytesIO(self._known[digest])

    def range(self, digest: str, start: int, end: int) -> bytes:
        raise MissingFile(f"{self.origin}: an engine does not give layers", hint="use a registry or an archive")


class EngineView:
    """The merged file system of an image, read file by file from a container that is never started.

    ``layers`` are the image's by diff_id, ``moved`` the bytes that the engine sent.
    """

    def __init__(self, client: docker.DockerClient, name: str) -> None:
        self._api, self._name = client.api, name
        diff_ids = (self._api.inspect_image(name).get("RootFS") or {}).get("Layers") or []
        self.layers = tuple(LayerRef(diff_id, 0, DOCKER.layer_tar, diff_id) for diff_id in diff_ids)
        self.notes: list[str] = []
        self.moved = 0
        self._stats: dict[str, dict[str, Any] | None] = {}
        self._files: dict[str, tuple[Found, bytes]] = {}
        self.container = self._api.create_container(name, command=["true"])["Id"]

    def close(self) -> None:
        """Remove the container."""
        self._api.remove_container(self.container, force=True, v=True)

    def __enter__(self) -> EngineView:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def want(self, paths: object, folders: object = (), *, deep: bool = True) -> None:
        """Nothing to prepare."""

    def stat(self, path: str, *, follow: bool = True) -> Found | None:
        """What *path* is; its ``path`` is the real one, links resolved. Files are read for their sha256."""
        real = self._real(path, follow)
        if real is None:
            return None
        if real not in self._files:
            with self._archive(real) as tar:
                member = next(iter(tar))
                wanted = member.kind is Kind.FILE and member.size <= _LARGEST
                data = b"".join(tar.data(member)) if wanted else b""
            self.moved += len(data)
            sha256 = hashlib.sha256(data).hexdigest() if wanted else ""
            self._files[real] = _found(real, member, sha256), data
        return self._files[real][0]

    def names(self, folder: str, *, deep: bool = True) -> Names:
        """The names in *folder*. The engine's API has no listing, so the folder is sent whole."""
        real = self._real(folder, True)
        found: set[str] = set()
        if real is not None and _kind(self._head(real)) is Kind.FOLDER:
            with self._archive(real) as tar:
                for member in tar:
                    self.moved += member.size
                    found |= {*member.path.split("/")[1:2]}
        return Names(tuple(sorted(found)), True)

    def read(self, path: str) -> bytes:
        """The bytes of the regular file at *path*."""
        found = self.stat(path)
        if found is None:
            raise MissingFile(f"{path}: not in {self._name}")
        if found.kind is not Kind.FILE or not found.sha256:
            raise TreeError(f"{path} in {self._name} is not a regular file of a size to patch")
        return self._files[found.path][1]

    def _real(self, path: str, follow: bool) -> str | None:
        """*path* with its links resolved, the last one only with *follow*; None if there is nothing."""
        at = ""
        parts = [part for part in path.split("/") if part not in ("", ".")]
        for number, part in enumerate(parts):
            at = at.rpartition("/")[0] if part == ".." else f"{at}/{part}"
            more = number + 1 < len(parts)
            stat = self._head(at)
            if stat is not None and _kind(stat) is Kind.SYMLINK and (follow or more):
                at = str(stat["linkTarget"]).rstrip("/")  # the engine has followed it to its end
                stat = self._head(at)
            if stat is None or (more and _kind(stat) is not Kind.FOLDER):
                return None
        return at.lstrip("/")

    def _head(self, path: str) -> dict[str, Any] | None:
        path = "/" + path.strip("/")
        if path not in self._stats:
            answer = self._api.head(self._url(), params={"path": path}, timeout=self._api.timeout)
            if answer.status_code not in (200, 404):
                raise TreeError(f"{path} in {self._name}: the engine answers {answer.status_code}; a loop of links?")
            text = answer.headers.get("X-Docker-Container-Path-Stat", "") if answer.status_code == 200 else ""
            self._stats[path] = json.loads(base64.b64decode(text)) if text else None
        return self._stats[path]

    def _url(self) -> str:
        return f"{self._api.base_url}/v{self._api.api_version}/containers/{self.container}/archive"

    @contextlib.contextmanager
    def _archive(self, path: str) -> Iterator[TarScan]:
        """The tar of *path*, given up when the caller has what it wants."""
        options: dict[str, Any] = {"stream": True, "headers": {"Accept-Encoding": "identity"}}
        params = {"path": "/" + path.strip("/")}
        with self._api.get(self._url(), params=params, timeout=self._api.timeout, **options) as answer:
            if answer.status_code != 200:
                raise TreeError(f"{path} in {self._name}: the engine answers {answer.status_code} {answer.text[:200]}")
            yield TarScan(_Stream(answer.raw), f"{path} in {self._name}")


class _Stream:
    """An answer's body as a tar is read."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw, self.position = raw, 0

    def read(self, size: int) -> bytes:
        return b"".join(self.pieces(size))

    def skip(self, size: int) -> int:
        return sum(len(piece) for piece in self.pieces(size))

    def pieces(self, size: int) -> Iterator[bytes]:
        while size > 0 and (piece := self._raw.read(min(size, _PIECE))):
            size -= len(piece)
            self.position += len(piece)
            yield piece


def _found(path: str, member: Member, sha256: str) -> Found:
    return Found(
        path=path,
        kind=member.kind,
        mode=member.mode,
        uid=member.uid,
        gid=member.gid,
        size=member.size,
        mtime=member.mtime,
        link=member.link,
        xattrs=member.xattrs,
        layer=-1,
        digest="",
        offset=0,
        sha256=sha256,
    )


def _kind(stat: dict[str, Any] | None) -> Kind | None:
    """The kind in an engine's path stat, whose mode is Go's fs.FileMode."""
    mode = int((stat or {}).get("mode", 0))
    return None if stat is None else Kind.SYMLINK if mode & 1 << 27 else Kind.FOLDER if mode & 1 << 31 else Kind.FILE
