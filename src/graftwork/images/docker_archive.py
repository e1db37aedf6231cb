"""docker-archive: the tar of ``docker save`` (image-spec v1.2 of moby), read in place and written as a stream."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from graftwork.errors import GraftworkError, MissingFile, TreeError, UsageError
from graftwork.images.graft import usable_config
from graftwork.oci.blobs import Blobs, ByteStream
from graftwork.oci.canonical import canonical_json
from graftwork.oci.families import DOCKER, Document, read_config
from graftwork.oci.inflate import Codec, detect
from graftwork.oci.model import Descriptor, sha256_digest

_SMALL = 4 << 20
_BLOB = re.compile(r"blobs/sha256/([0-9a-f]{64})")


class Archive:
    """An archive with one image, seen as a Docker v2 manifest; its layers are named by their diff_ids.

    Compressed ones, as an engine saves them that keeps images in containerd, are named by their own digests.
    """

    def __init__(self, file: Path, tar: tarfile.TarFile) -> None:
        self.origin = f"docker-archive:{file}"
        self._tar = tar
        self._file = file
        entry = self._entry()
        raw = self._small(entry["Config"])
        config = usable_config(read_config(raw, DOCKER.config, f"the configuration in {file}"), str(file))
        diff_ids = (config.data.get("rootfs") or {}).get("diff_ids") or []
        paths = entry.get("Layers") or []
        if len(diff_ids) != len(paths):
            raise UsageError(f"{file}: {len(paths)} layers, but {len(diff_ids)} diff_ids")
        self.members: dict[str, tuple[int, int]] = {config.digest: self._place(entry["Config"])}
        layers = []
        for diff_id, path in zip(diff_ids, paths, strict=True):
            digest, media_type = self._layer(diff_id, path)
            self.members[digest] = self._place(path)
            layers.append({"mediaType": media_type, "digest": digest, "size": self.members[digest][1]})
        data = {
            "schemaVersion": 2,
            "mediaType": DOCKER.manifest,
            "config": {"mediaType": DOCKER.config, "digest": config.digest, "size": len(raw)},
            "layers": layers,
        }
        self.manifest = Document(canonical_json(data), data, DOCKER.manifest)

    def open(self, digest: str, size: int) -> ByteStream:
        """See ``Blobs.open``."""
        start, length = self._found(digest)
        file = self._file.open("rb")
        file.seek(start)
        return _Part(file, length)

    def range(self, digest: str, start: int, end: int) -> bytes:
        """See ``Blobs.range``."""
        first, length = self._found(digest)
        with self._file.open("rb") as file:
            file.seek(first + start)
            return file.read(max(min(end, length) - start, 0))

    def _layer(self, diff_id: str, path: str) -> tuple[str, str]:
        """The digest and media type of the layer at *path*, whose name is its digest in an OCI layout's archive."""
        named = _BLOB.fullmatch(path)
        if named is None or f"sha256:{named[1]}" == diff_id:
            return diff_id, DOCKER.layer_tar
        start, _ = self._place(path)
        with self._file.open("rb") as file:
            file.seek(start)
            codec = detect(file.read(512))
        kinds: dict[Codec | None, str] = {Codec.GZIP: DOCKER.layer_gzip, Codec.ZSTD: DOCKER.layer_zstd}
        return f"sha256:{named[1]}", kinds.get(codec, DOCKER.layer_tar)

    def _found(self, digest: str) -> tuple[int, int]:
        if digest not in self.members:
            raise MissingFile(f"{self.origin} lacks the blob {digest}")
        return self.members[digest]

    def _entry(self) -> dict[str, Any]:
        try:
            listed = json.loads(self._small("manifest.json"))
            if not isinstance(listed, list) or len(listed) != 1:
                raise UsageError(f"{self._file}: holds {len(listed)} images, graftwork reads archives of one")
            (entry,) = listed
            if not isinstance(entry["Config"], str) or not all(isinstance(path, str) for path in entry["Layers"]):
                raise TypeError("Config and Layers are not paths")
        except UsageError:
            raise
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UsageError(f"{self._file}: manifest.json cannot be read: {error}") from None
        return dict(entry)

    def _place(self, name: object) -> tuple[int, int]:
        """Where a member's bytes lie in the file; links are followed (older engines write equal layers as links)."""
        asked = name
        for _ in range(8):
            try:
                member = self._tar.getmember(str(name))
            except KeyError:
                raise UsageError(f"{self._file}: has no {asked}") from None
            if member.isreg():
                return member.offset_data, member.size
            if not (member.issym() or member.islnk()):
                raise UsageError(f"{self._file}: {asked} is not a file")
            name = str((Path(str(name)).parent / member.linkname).as_posix()) if member.issym() else member.linkname
            name = _normal(str(name))
        raise UsageError(f"{self._file}: {asked} is a loop of links")

    def _small(self, name: object) -> bytes:
        start, length = self._place(name)
        if length > _SMALL:
            raise UsageError(f"{self._file}: {name} has {length} bytes")
        with self._file.open("rb") as file:
            file.seek(start)
            return file.read(length)


@contextlib.contextmanager
def open_archive(file: Path) -> Iterator[Archive]:
    """The archive at *file*. UsageError if it is not one, or holds several images."""
    try:
        with tarfile.open(file, "r:") as tar:
            yield Archive(file, tar)
    except (OSError, tarfile.TarError) as error:
        raise UsageError(f"{file}: not a docker-archive: {error}", hint="uncompress a .tar.gz first") from None


def save_archive(
    file: Path, name: str, manifest: Document, config: Document, own: Mapping[str, bytes], base: Blobs
) -> int:
    """``write_archive`` to *file*, in one step: a run that is cut leaves the old file. TreeError if it cannot."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as out:
            try:
                copied = write_archive(out, name, manifest, config, own, base, file.parent)
                os.fchmod(out.fileno(), 0o644)
            except BaseException:
                Path(out.name).unlink()
                raise
        Path(out.name).replace(file)
    except GraftworkError:
        raise
    except OSError as error:
        raise TreeError(f"cannot write {file}: {error.strerror or error}", hint="Check its owner and space.") from error
    return copied


def write_archive(
    out: IO[bytes],
    name: str,
    manifest: Document,
    config: Document,
    own: Mapping[str, bytes],
    base: Blobs | None,
    scratch: Path | None = None,
) -> int:
    """Write an image as an archive under *name* ("repository:tag"); returns the bytes of base layers that were copied.

    *own* are tars of layers by diff_id. Other layers come from *base*, by way of the folder *scratch*; with None they
    are left out, which an engine that already has them accepts (it looks a layer up before it reads it).
    """
    copied, paths = 0, []
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for descriptor, diff_id in zip(manifest.layers, config.data["rootfs"]["diff_ids"], strict=True):
            path = f"{diff_id.partition(':')[2]}/layer.tar"
            paths.append(path)
            if diff_id in own:
                _add(tar, path, io.BytesIO(own[diff_id]), len(own[diff_id]))
            elif base is not None:
                with _spooled(base, descriptor, diff_id, scratch) as file:
                    copied += _add(tar, path, file, file.seek(0, 2))
        config_path = f"{sha256_digest(config.raw).partition(':')[2]}.json"
        _add(tar, config_path, io.BytesIO(config.raw), len(config.raw))
        entry: list[dict[str, str | Sequence[str]]] = [{"Config": config_path, "RepoTags": [name], "Layers": paths}]
        listed = canonical_json(entry)
        _add(tar, "manifest.json", io.BytesIO(listed), len(listed))
    return copied


@contextlib.contextmanager
def _spooled(base: Blobs, layer: Descriptor, diff_id: str, scratch: Path | None) -> Iterator[IO[bytes]]:
    """A layer's tar on disk, verified: a tar header needs the length first."""
    from graftwork.oci.inflate import LayerStream

    with tempfile.TemporaryFile(dir=scratch) as file, base.open(layer.digest, layer.size) as raw:
        stream = LayerStream(raw, digest=layer.digest, size=layer.size, media_type=layer.media_type, diff_id=diff_id)
        for piece in stream.pieces(1 << 62):
            file.write(piece)
        stream.finish()
        yield file


def _add(tar: tarfile.TarFile, path: str, data: IO[bytes], size: int) -> int:
    data.seek(0)
    info = tarfile.TarInfo(path)
    info.size = size
    tar.addfile(info, data)
    return size


def _normal(path: str) -> str:
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


class _Part:
    """A stretch of a file as a stream."""

    def __init__(self, file: IO[bytes], length: int) -> None:
        self._file, self._left = file, length

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> _Part:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
