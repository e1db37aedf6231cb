"""Copying an image, with all its platforms, to another registry: only when asked, and gone on with after a cut."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from graftwork.errors import PinError, TreeError, UsageError
from graftwork.names import Digest
from graftwork.oci.families import INDEXES, MANIFESTS, Document, check_bytes, refuse_foreign
from graftwork.oci.flow import Flow
from graftwork.oci.model import Descriptor
from graftwork.oci.reference import ImageRef
from graftwork.oci.registry import Registry

# Which blob, bytes that the target has of it, its size.
MirrorProgress = Callable[[Digest, int, int], None]

_MOST_MANIFESTS = 1000
_DEEPEST = 4  # indexes within indexes


@dataclass(frozen=True)
class MirrorReport:
    """What a mirror did. ``moved`` are bytes that were uploaded in whole blobs; ``present`` blobs were there before."""

    digest: Digest
    manifests: int
    present: int
    mounted: int
    copied: int
    moved: int


def mirror(
    source: Registry,
    source_ref: ImageRef,
    target: Registry,
    target_ref: ImageRef,
    *,
    progress: MirrorProgress | None = None,
    state: Path | None = None,
) -> MirrorReport:
    """Copy what *source_ref* names to *target_ref*, byte for byte, and read back that it is there.

    The tag is written last, so that it never names an incomplete image. *state* is a file in which unfinished uploads
    are noted, so that another run goes on with them. PolicyError, before anything is moved, over the budget;
    PinError where bytes are not what their digest says; UsageError for layers that may not be copied.
    """
    root, others = _collect(source, source_ref)
    if target_ref.digest not in (None, root.digest):
        raise PinError(f"{source_ref} is {root.digest}, but should become {target_ref}")
    blobs = _blobs([*others, root], str(source_ref))
    missing = [blob for blob in blobs if not target.find_blob(target_ref.repository, blob.digest)]
    left = missing
    if source.host == target.host:
        left = [
            blob
            for blob in missing
            if not target.mount(target_ref.repository, blob.digest, source_ref.repository).mounted
        ]
    total = sum(blob.size for blob in left)
    shared = source.transport.traffic is target.transport.traffic
    target.transport.traffic.check(2 * total if shared else total, f"copying {source_ref} to {target_ref}")
    journal = _Journal(state)
    for blob in left:
        _copy(source, source_ref.repository, target, target_ref.repository, blob, journal, progress)
    for document in others:
        target.put_manifest(target_ref.repository, document)
    target.put_manifest(target_ref.repository, root, target_ref.tag)
    found = target.find_manifest(target_ref.repository, target_ref.tag or root.digest)
    if found is None or found.digest != root.digest:
        said = found.digest if found else "nothing"
        raise PinError(f"{target_ref} names {said} after the copy, expected {root.digest}")
    mounted = len(missing) - len(left)
    return MirrorReport(root.digest, len(others) + 1, len(blobs) - len(missing), mounted, len(left), total)


def _collect(source: Registry, ref: ImageRef) -> tuple[Document, list[Document]]:
    """The image's document and everything below it, the lowest first, as they must be pushed."""
    found: dict[str, Document] = {}

    def descend(document: Document, depth: int) -> None:
        for child in document.manifests if document.is_index else ():
            if child.digest in found:
                continue
            where = f"{ref.name}@{child.digest}"
            if depth >= _DEEPEST or len(found) >= _MOST_MANIFESTS:
                raise UsageError(f"{ref} has more than {_MOST_MANIFESTS} manifests, or indexes in {_DEEPEST} levels")
            if child.media_type not in (*MANIFESTS, *INDEXES):
                raise UsageError(f"{where} is a {child.media_type!r}, not an image manifest or index")
            below = source.manifest(ref.repository, child.digest)
            check_bytes(below.raw, child, where)
            descend(below, depth + 1)
            found[child.digest] = below

    root = source.manifest(ref.repository, ref.reference)
    descend(root, 1)
    return root, list(found.values())


def _blobs(documents: list[Document], where: str) -> list[Descriptor]:
    """Every blob of the manifests, once. UsageError for foreign layers and for one digest with two sizes."""
    found: dict[str, Descriptor] = {}
    for document in documents:
        if document.is_index:
            continue
        refuse_foreign(document, where)
        for blob in (document.config, *document.layers):
            if found.setdefault(blob.digest, blob).size != blob.size:
                raise UsageError(
                    f"{where}: blob {blob.digest} has two sizes: {found[blob.digest].size} and {blob.size}"
                )
    return list(found.values())


def _copy(
    source: Registry,
    source_repository: str,
    target: Registry,
    repository: str,
    blob: Descriptor,
    journal: _Journal,
    progress: MirrorProgress | None,
) -> None:
    key = f"{target.host}/{repository}@{blob.digest}"
    digest = Digest(blob.digest)
    with contextlib.closing(Flow(source, source_repository, blob)) as flow:
        target.uploader.upload(
            repository,
            blob.digest,
            blob.size,
            flow.open_at,
            progress=(lambda done, size: progress(digest, done, size)) if progress else None,
            location=journal.get(key),
            remember=lambda location: journal.set(key, location),
        )
    journal.set(key, "")


class _Journal:
    """Where unfinished uploads can be gone on with: a file that only its owner can read, for its URLs are keys."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._places: dict[str, str] = {}
        if path is not None and path.exists():
            with _writing(path):
                text = path.read_text(encoding="utf-8", errors="replace")
            with contextlib.suppress(ValueError, RecursionError):  # a broken note only costs the resumption
                data = json.loads(text)
                pairs = data.items() if isinstance(data, dict) else ()
                self._places = {key: value for key, value in pairs if isinstance(value, str)}

    def get(self, key: str) -> str:
        return self._places.get(key, "")

    def set(self, key: str, place: str) -> None:
        if place == self._places.get(key, ""):
            return
        self._places[key] = place
        if not place:
            del self._places[key]
        if self._path is None:
            return
        with _writing(self._path):
            if not self._places:
                self._path.unlink(missing_ok=True)
                return
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".graftwork-", dir=self._path.parent)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(self._places, file)
            Path(temporary).replace(self._path)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TreeError(f"cannot use the mirror's state file {path}: {error.strerror}") from error
