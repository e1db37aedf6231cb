"""The Docker Engine through its API: an image there as a base, its files, and loading a grafted image into it.

No BuildKit and no ``docker build``. A grafted image is loaded as an archive that leaves out the layers the engine
already has (it looks a layer up before it reads it), so a 30 GB base is neither saved nor sent.
"""

from __future__ import annotations

import contextlib
import os
import tarfile
import tempfile
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any, cast

from graftwork.errors import MissingFile, TreeError, UnreachableError, UsageError
from graftwork.images.docker_archive import write_archive
from graftwork.images.sources import Source
from graftwork.oci.blobs import ByteStream
from graftwork.oci.canonical import canonical_json
from graftwork.oci.families import DOCKER, Document
from graftwork.oci.tarscan import Kind
from graftwork.trees.merged import Found, Names

if TYPE_CHECKING:
    import docker

    from graftwork.images.ship import Image

_KINDS = {tarfile.REGTYPE: Kind.FILE, tarfile.DIRTYPE: Kind.FOLDER, tarfile.SYMTYPE: Kind.SYMLINK}
_LARGEST = 64 << 20


@contextlib.contextmanager
def connected() -> Iterator[docker.DockerClient]:
    """The engine that DOCKER_HOST or the current context names; UnreachableError if none answers."""
    import docker
    import docker.errors
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
    except docker.errors.APIError as error:
        raise UsageError(f"the engine refused: {error.explanation or error}") from None
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
    if found.get("Variant"):
        config["variant"] = found["Variant"]
    document = Document(canonical_json(config), config, DOCKER.config)
    data = {
        "schemaVersion": 2,
        "mediaType": DOCKER.manifest,
        "config": {"mediaType": DOCKER.config, "digest": document.digest, "size": len(document.raw)},
        "layers": [{"mediaType": DOCKER.layer_tar, "digest": layer, "size": 0} for layer in layers],
    }
    manifest = Document(canonical_json(data), data, DOCKER.manifest)
    blobs = _NoBlobs(f"docker:{name}", {document.digest: document.raw})
    return Source(f"docker:{name}", manifest, blobs, lambda _: manifest)


def load(client: docker.DockerClient, image: Image, name: str) -> str:
    """Load a grafted image under *name*; returns the engine's image id. Only the payload's layer is sent."""
    grafted = image.grafted
    own = {grafted.config.data["rootfs"]["diff_ids"][-1]: image.tar}
    with tempfile.TemporaryFile() as file:
        write_archive(file, name, grafted.manifest, grafted.config, own, None)
        file.seek(0)
        client.images.load(file)
    found = client.api.inspect_image(name)
    if list(found["RootFS"]["Layers"]) != grafted.config.data["rootfs"]["diff_ids"]:
        raise TreeError(f"the engine made other layers of {name}", hint="load a full docker-archive instead")
    return str(found["Id"])


def _history(rows: list[dict[str, Any]], layers: int) -> list[dict[str, Any]]:
    """The engine's history, oldest first; left out where it cannot be matched with the layers."""
    found = [
        {"created_by": row.get("CreatedBy", ""), **({} if row.get("Size") else {"empty_layer": True})}
        for row in reversed(rows)
    ]
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
    """The merged file system of an image, read file by file from a container that is never started."""

    def __init__(self, client: docker.DockerClient, name: str) -> None:
        self._client, self._name = client, name
        self.container = client.api.create_container(name, command=["true"])["Id"]

    def close(self) -> None:
        """Remove the container."""
        self._client.api.remove_container(self.container, force=True)

    def __enter__(self) -> EngineView:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def want(self, paths: object, folders: object = (), *, deep: bool = True) -> None:
        """Nothing to prepare."""

    def stat(self, path: str, *, follow: bool = True) -> Found | None:
        """What *path* is; links are followed by asking for where they point."""
        for _ in range(40):
            with self._archive(path) as tar:
                member = tar.next() if tar is not None else None
            if member is None:
                return None
            if not (member.issym() and follow):
                return self._found(path, member)
            path = (
                member.linkname if member.linkname.startswith("/") else f"{path.rpartition('/')[0]}/{member.linkname}"
            )
        raise TreeError(f"{path} in {self._name}: over 40 links, a loop")

    def names(self, folder: str, *, deep: bool = True) -> Names:
        """The names in *folder*, which is sent whole: for small folders."""
        found = set()
        with self._archive(folder) as tar:
            for member in tar or ():
                parts = member.name.split("/")
                if len(parts) > 1 and parts[1]:
                    found.add(parts[1])
        return Names(tuple(sorted(found)), True)

    def read(self, path: str) -> bytes:
        """The bytes of the regular file at *path*."""
        real = self.stat(path)
        if real is None:
            raise MissingFile(f"{path}: not in {self._name}")
        with self._archive(real.path) as tar:
            member = tar.next() if tar is not None else None
            if tar is None or member is None or not member.isreg() or member.size > _LARGEST:
                raise TreeError(f"{path} in {self._name} is not a regular file of a size to patch")
            data = tar.extractfile(member)
            return data.read() if data else b""

    def _found(self, path: str, member: tarfile.TarInfo) -> Found:
        kind = _KINDS.get(member.type, Kind.OTHER)
        return Found(
            path=path.lstrip("/"),
            kind=kind,
            mode=member.mode & 0o7777,
            uid=member.uid,
            gid=member.gid,
            size=member.size,
            mtime=int(member.mtime),
            link=member.linkname,
            xattrs={},
            layer=-1,
            digest="",
            offset=0,
        )

    @contextlib.contextmanager
    def _archive(self, path: str) -> Iterator[tarfile.TarFile | None]:
        import docker.errors

        try:
            stream, _ = self._client.api.get_archive(self.container, "/" + path.lstrip("/"))
        except docker.errors.NotFound:
            yield None
            return
        with tarfile.open(fileobj=cast("IO[bytes]", _Stream(stream)), mode="r|") as tar:
            yield tar


class _Stream:
    """Chunks of an answer as a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = iter(chunks), b""

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self._rest) < size:
            chunk = next(self._chunks, b"")
            if not chunk:
                break
            self._rest += chunk
        data, self._rest = (self._rest, b"") if size < 0 else (self._rest[:size], self._rest[size:])
        return data
