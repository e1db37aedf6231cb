"""What points to an image: signatures, SBOMs and provenance (distribution-spec 1.1, referrers and the tag schema)."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from graftwork.errors import UsageError
from graftwork.oci.canonical import canonical_json
from graftwork.oci.errors import NotFoundError, RegistryError
from graftwork.oci.families import OCI, Document
from graftwork.oci.registry import Registry

_TRIES = 3
_ABSENT = (400, 404, 405, 501)


def referrers(registry: Registry, repository: str, digest: str, artifact_type: str = "") -> list[dict[str, Any]]:
    """The descriptors of what has *digest* as its subject; with *artifact_type* only those of that type."""
    what = f"what refers to {registry.host}/{repository}@{digest}"
    try:
        found: list[Any] = []
        for page in registry.pages(f"/v2/{repository}/referrers/{digest}", repository, what):
            found += _listed(page, what)
    except RegistryError as error:
        if error.status not in _ABSENT:
            raise
        # Before distribution-spec 1.1 there was no such address; clients keep the list under a tag.
        found = _listed(_fallback(registry, repository, digest).data, what)
    return [item for item in found if artifact_type in ("", item.get("artifactType"))]


def attach(registry: Registry, repository: str, *documents: Document) -> bool:
    """Store manifests that have one subject, and see to it that they are found from there.

    Their blobs must be there. True if the registry keeps the list, False if a tag had to be written, once for all of
    them. UnreachableError if another writer wins the tag again and again.
    """
    subjects = {_subject(document) for document in documents}
    if len(subjects) != 1:
        raise UsageError(f"manifests about {', '.join(sorted(subjects)) or 'nothing'} cannot be attached as one")
    (subject,) = subjects
    with ThreadPoolExecutor(len(documents)) as pool:
        replies = list(pool.map(lambda document: registry.put_manifest(repository, document), documents))
    listed = [
        _entry(document)
        for document, reply in zip(documents, replies, strict=True)
        if reply.headers.get("OCI-Subject") != subject
    ]
    return not listed or _list(registry, repository, subject, listed)


def _subject(document: Document) -> str:
    found = document.data.get("subject")
    if not isinstance(found, dict) or not isinstance(found.get("digest"), str):
        raise UsageError(f"the manifest {document.digest} has no subject to be attached to")
    return str(found["digest"])


def _entry(document: Document) -> dict[str, Any]:
    """What a list of referrers says of *document*."""
    entry: dict[str, Any] = {"mediaType": document.media_type, "digest": document.digest, "size": len(document.raw)}
    kind = document.data.get("artifactType") or document.data.get("config", {}).get("mediaType")
    return entry | {
        key: value for key, value in (("artifactType", kind), ("annotations", _annotations(document))) if value
    }


def _list(registry: Registry, repository: str, subject: str, entries: Sequence[dict[str, Any]]) -> bool:
    """Put *entries* on the list that clients keep under a tag; False."""
    ours, where = {entry["digest"] for entry in entries}, f"{registry.host}/{repository}:{_tag(subject)}"
    for _ in range(_TRIES):
        index = _fallback(registry, repository, subject)
        others = [item for item in _listed(index.data, where) if item.get("digest") not in ours]
        registry.put_manifest(repository, index.rewritten(manifests=[*others, *entries]), _tag(subject))
        # No registry has a conditional PUT: two writers can lose one entry, so look.
        found = _listed(_fallback(registry, repository, subject).data, where)
        if all(entry in found for entry in entries):
            return False
    raise RegistryError(
        f"{where} is rewritten by somebody else again and again", hint="Try again when no other push is under way."
    )


def _annotations(document: Document) -> dict[str, Any]:
    found = document.data.get("annotations")
    return found if isinstance(found, dict) else {}


def _tag(digest: str) -> str:
    """``sha256-<hex>``: the tag schema's name for a list."""
    return digest.replace(":", "-", 1)[:128]


def _fallback(registry: Registry, repository: str, digest: str) -> Document:
    try:
        found = registry.manifest(repository, _tag(digest))
    except NotFoundError:
        data: dict[str, Any] = {"schemaVersion": 2, "mediaType": OCI.index, "manifests": []}
        return Document(canonical_json(data), data, OCI.index)
    if not found.is_index:
        raise UsageError(f"{registry.host}/{repository}:{_tag(digest)} is no list of referrers, but {found.media_type}")
    return found


def _listed(page: dict[str, Any], what: str) -> list[dict[str, Any]]:
    items = page.get("manifests")
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise UsageError(f"{what}: the registry's answer has no list of manifests")
    return items
