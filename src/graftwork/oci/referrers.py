"""What points to an image: signatures, SBOMs and provenance (distribution-spec 1.1, referrers and the tag schema)."""

from __future__ import annotations

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


def attach(registry: Registry, repository: str, document: Document) -> bool:
    """Store a manifest that has a subject, and see to it that it is found from there.

    Its blobs must be there. True if the registry keeps the list, False if a tag had to be written.
    UnreachableError if another writer wins the tag again and again.
    """
    subject = document.data.get("subject")
    if not isinstance(subject, dict) or not isinstance(subject.get("digest"), str):
        raise UsageError(f"the manifest {document.digest} has no subject to be attached to")
    reply = registry.put_manifest(repository, document)
    if reply.headers.get("OCI-Subject") == subject["digest"]:
        return True
    entry: dict[str, Any] = {"mediaType": document.media_type, "digest": document.digest, "size": len(document.raw)}
    kind = document.data.get("artifactType") or document.data.get("config", {}).get("mediaType")
    entry |= {key: value for key, value in (("artifactType", kind), ("annotations", _annotations(document))) if value}
    for _ in range(_TRIES):
        index = _fallback(registry, repository, subject["digest"])
        others = [item for item in _listed(index.data, document.digest) if item.get("digest") != document.digest]
        registry.put_manifest(repository, index.rewritten(manifests=[*others, entry]), _tag(subject["digest"]))
        # No registry has a conditional PUT: two writers can lose one entry, so look.
        if entry in _listed(_fallback(registry, repository, subject["digest"]).data, document.digest):
            return False
    raise RegistryError(
        f"{registry.host}/{repository}:{_tag(subject['digest'])} is rewritten by somebody else again and again",
        hint="Try again when no other push is under way.",
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
