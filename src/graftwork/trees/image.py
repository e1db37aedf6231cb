"""A tree that is files of an image, read by range through the lock's index; and making that index by one scan."""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Iterable, Iterator

from graftwork.catalog.base_index import AccessPoint, BaseIndex, IndexedLayer, IndexedPath
from graftwork.errors import MissingFile, PinError, TreeError, UsageError
from graftwork.names import Digest, RelPath
from graftwork.oci.blobs import Blobs
from graftwork.oci.inflate import LayerStream
from graftwork.oci.seekable import Access, Point, PointKind, read_at
from graftwork.oci.tarscan import Kind
from graftwork.trees.archive import MAX_READ
from graftwork.trees.layer_facts import above
from graftwork.trees.merged import Found, MergedView

_WINDOW = 32 << 10


class IndexedImageTree:
    """The files that *index* knows, read from *blobs* by ranged requests, each checked against its sha256.

    A file without an access point is found by reading its whole layer once; ``notes`` says so. ``moved`` counts bytes.
    """

    def __init__(self, blobs: Blobs, index: BaseIndex) -> None:
        self.index, self.blobs = index, blobs
        self.origin = f"{blobs.origin} (/{index.root.strip('/')}, by the lock's index)"
        self.moved = 0
        self.notes: list[str] = []
        self._facts = {item.path: item for item in index.paths}
        self._points: dict[int, Point] = {}
        self._read: dict[str, bytes] = {}

    def read(self, path: RelPath) -> bytes:
        """The file's bytes. Raises MissingFile, PinError where the base is not the indexed one, TreeError."""
        fact = self._fact(path)
        if fact.kind == "absent":
            raise MissingFile(f"{path}: not in {self.origin}")
        if fact.kind != "file" or fact.layer is None or fact.sha256 is None:
            raise TreeError(f"{path} in {self.origin} is a {fact.kind}, not a regular file")
        if fact.path not in self._read:
            self._read[fact.path] = self._bytes(fact, fact.layer, fact.sha256)
        return self._read[fact.path]

    def exists(self, path: RelPath) -> bool:
        """Whether *path* is a regular file. TreeError for a path that the index does not know."""
        return self._fact(path).kind == "file"

    def paths(self) -> Iterator[RelPath]:
        """The indexed files below the root."""
        root = self.index.root.strip("/")
        skip = len(root) + 1 if root else 0
        inside = (
            item for item in self.index.paths if item.kind == "file" and (not root or item.path.startswith(f"{root}/"))
        )
        return (RelPath(item.path[skip:]) for item in inside)

    def _fact(self, path: RelPath) -> IndexedPath:
        inside = f"{self.index.root.strip('/')}/{path}".lstrip("/")
        if inside not in self._facts:
            raise TreeError(
                f"{path}: the index of {self.index.image} was made without it", hint="Make it again: graftwork lock."
            )
        return self._facts[inside]

    def _bytes(self, fact: IndexedPath, layer: int, sha256: str) -> bytes:
        if fact.point is None or fact.end is None:
            return self._by_scan(fact, layer, sha256)
        access = Access(self._point(fact.point), fact.end)
        self.moved += max(access.end - access.point.offset, 0)
        return read_at(self.blobs, self.index.layers[layer].digest, access, fact.offset, fact.size, sha256)

    def _by_scan(self, fact: IndexedPath, layer: int, sha256: str) -> bytes:
        """Read the whole layer, for all files of it that have no access point."""
        known = self.index.layers[layer]
        self.notes.append(f"layer {known.digest} has no access point near {fact.path}: read whole, {known.size} bytes")
        same = [item for item in self.index.paths if item.layer == layer and item.point is None and item.kind == "file"]
        with self.blobs.open(known.digest, known.size) as raw:
            stream = LayerStream(
                raw, digest=known.digest, size=known.size, media_type=known.media_type, diff_id=known.diff_id
            )
            data, at = b"", -1
            for item in sorted(same, key=lambda item: item.offset):
                if item.offset != at:
                    stream.skip(item.offset - stream.position)
                    data, at = stream.read(min(item.size, MAX_READ)), item.offset
                if hashlib.sha256(data).hexdigest() == item.sha256:
                    self._read[item.path] = data
            stream.finish()
        self.moved += stream.taken
        if fact.path not in self._read:
            raise PinError(f"{fact.path} in layer {known.digest} does not have the sha256 {sha256} of the index")
        return self._read[fact.path]

    def _point(self, number: int) -> Point:
        if number not in self._points:
            point = self.index.points[number]
            try:
                packed = base64.b64decode(point.window, validate=True)
                window = zlib.decompressobj().decompress(packed, _WINDOW + 1) if packed else b""
            except (binascii.Error, ValueError, zlib.error) as error:
                raise UsageError(
                    f"access point {number} of the index of {self.index.image} is damaged: {error}",
                    hint="Make it again: graftwork lock.",
                ) from error
            self._points[number] = Point(PointKind(point.kind), point.offset, point.out, point.bits, window[:_WINDOW])
        return self._points[number]


def build_index(
    view: MergedView,
    *,
    image: str,
    digest: Digest,
    manifest: bytes,
    config_digest: Digest,
    python: str,
    root: str,
    wanted: Iterable[RelPath],
    folders: Iterable[str] = (),
    deep: bool = True,
) -> BaseIndex:
    """The index of *wanted* files below *root*, their parent folders, and the names in *folders* and ``__pycache__``.

    *view* should be one with ``index=True``. Not *deep*: no layer is opened for a listing alone, which ``notes`` say.
    """
    root = root.strip("/")
    paths = {f"{root}/{path}".lstrip("/") for path in wanted}
    caches = {f"{path.rpartition('/')[0]}/__pycache__" for path in paths if path.endswith(".py")}
    listings = sorted({folder.strip("/") for folder in folders} | caches)
    view.want(sorted(paths), listings, deep=deep)
    found = _with_folders(view, paths)
    listed = {folder: view.names(folder, deep=deep) for folder in listings}
    readable = [(fact.layer, fact.access.point) for fact in found.values() if fact and fact.access]
    points = {(layer, point.offset, point.out): point for layer, point in readable}
    numbers = {key: number for number, key in enumerate(sorted(points))}
    items = [_indexed(path, fact, numbers) for path, fact in sorted(found.items())]
    blind = [item for item in items if item.kind == "file" and item.point is None]
    shallow = [folder for folder, names in listed.items() if not names.complete]
    return BaseIndex(
        schema=1,
        image=image,
        digest=digest,
        manifest_digest="sha256:" + hashlib.sha256(manifest).hexdigest(),
        manifest=base64.b64encode(manifest).decode(),
        config_digest=config_digest,
        python=python,
        root=f"/{root}",
        layers=[
            IndexedLayer(digest=ref.digest, size=ref.size, media_type=ref.media_type, diff_id=ref.diff_id)
            for ref in view.layers
        ],
        paths=items,
        points=[_stored_point(key[0], points[key]) for key in sorted(points)],
        listed={folder: list(names.names) for folder, names in listed.items()},
        notes=[
            *view.notes,
            *(f"/{folder} was listed without the lower layers, which may add names" for folder in shallow),
            *(f"/{i.path} has no access point: reading it reads all of layer {i.layer}" for i in blind),
        ],
    )


def _with_folders(view: MergedView, paths: set[str]) -> dict[str, Found | None]:
    """The paths, and every folder above each, by its name and by its real place."""
    found = {path: view.stat(path) for path in paths | {folder for path in paths for folder in above(path)}}
    real = {item.path for item in found.values() if item is not None}
    places = real | {folder for path in real for folder in above(path)}
    return found | {path: view.stat(path) for path in places - set(found) - {""}}


def _indexed(path: str, fact: Found | None, numbers: dict[tuple[int, int, int], int]) -> IndexedPath:
    if fact is None:
        return IndexedPath(path=path, kind="absent")
    access = fact.access
    is_file = fact.kind is Kind.FILE
    kind = {Kind.FILE: "file", Kind.FOLDER: "folder", Kind.SYMLINK: "symlink"}.get(fact.kind, "other")
    return IndexedPath(
        path=path,
        kind=kind,  # type: ignore[arg-type]
        real=fact.path if fact.path != path else "",
        mode=fact.mode,
        uid=fact.uid,
        gid=fact.gid,
        mtime=fact.mtime,
        link=fact.link if fact.kind is Kind.SYMLINK else "",
        xattrs={name: base64.b64encode(value).decode() for name, value in sorted(fact.xattrs.items())},
        layer=fact.layer if fact.layer >= 0 else None,
        size=fact.size,
        offset=fact.offset if is_file else 0,
        sha256=fact.sha256 if is_file else None,
        point=numbers[(fact.layer, access.point.offset, access.point.out)] if access and is_file else None,
        end=access.end if access and is_file else None,
    )


def _stored_point(layer: int, point: Point) -> AccessPoint:
    window = base64.b64encode(zlib.compress(point.window, 9)).decode() if point.window else ""
    return AccessPoint(
        layer=layer, kind=point.kind.value, offset=point.offset, out=point.out, bits=point.bits, window=window
    )
