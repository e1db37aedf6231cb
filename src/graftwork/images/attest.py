"""SBOM, provenance and signature of a finished image: made, written beside it, attached to it in its registry."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from graftwork.errors import ProofError, TreeError
from graftwork.images import provenance, sbom
from graftwork.images.record import Base, Record
from graftwork.names import RelPath
from graftwork.oci.families import Document, read_manifest
from graftwork.oci.layout import replace_file
from graftwork.oci.model import Descriptor, sha256_digest
from graftwork.patching.plan import Plan

if TYPE_CHECKING:
    from graftwork.images.provenance import Attachment
    from graftwork.images.signature import PrivateKey, PublicKey
    from graftwork.oci.registry import Registry


@dataclass(frozen=True)
class Documents:
    """What is said about one manifest: ``envelope`` is the signed provenance, None without a key."""

    subject: Descriptor
    sbom: bytes
    provenance: bytes
    envelope: bytes | None
    epoch: int


def documents(
    record: Record,
    plan: Plan,
    inputs: Mapping[RelPath, str],
    subject: Descriptor,
    layer: str,
    *,
    base: Base | None,
    name: str = "",
    key: PrivateKey | None = None,
) -> Documents:
    """Make them for the manifest *subject* of one platform; the same build gives the same bytes."""
    bill = sbom.remembered(record, subject, plan, base=base, name=name)
    said = provenance.statement(record, subject, layer, inputs, name=name, base=base)
    envelope = None
    if key is not None:
        from graftwork.images.signature import sign_statement

        envelope = sign_statement(key, said)
    return Documents(subject, bill, said, envelope, record.epoch)


def write(found: Documents, folder: Path, prefix: str = "") -> list[Path]:
    """``sbom.cdx.json``, ``provenance.json`` and, if signed, ``provenance.dsse.json`` in *folder*. Or TreeError."""
    files = {f"{prefix}sbom.cdx.json": found.sbom, f"{prefix}provenance.json": found.provenance}
    if found.envelope is not None:
        files[f"{prefix}provenance.dsse.json"] = found.envelope
    try:
        for name, data in files.items():
            replace_file(folder / name, data)
    except OSError as error:
        raise TreeError(f"cannot write {folder / name}: {error.strerror}", hint="Check its owner and space.") from error
    return [folder / name for name in files]


def blobs(found: Documents) -> list[bytes]:
    """What must be in the repository before they are attached."""
    return [blob for _, _, parts in _artifacts(found) for blob in parts]


def attach(found: Documents, registry: Registry, repository: str) -> int:
    """Attach them as referrers of their subject, which must be there, as must their blobs; returns how many."""
    from graftwork.oci import referrers

    rows = [read_manifest(raw, "", f"the {kind} of {found.subject.digest}") for kind, raw, _ in _artifacts(found)]
    referrers.attach(registry, repository, *rows)
    return len(rows)


def _artifacts(found: Documents) -> list[tuple[str, bytes, list[bytes]]]:
    """The type, manifest and blobs of each."""
    from graftwork.images.signature import ENVELOPE

    rows = [(sbom.MEDIA_TYPE, found.sbom)]
    rows += [(ENVELOPE, found.envelope)] if found.envelope is not None else [(provenance.IN_TOTO, found.provenance)]
    made = [(kind, provenance.artifact(found.subject, kind, data, kind, {}, found.epoch)) for kind, data in rows]
    return [(kind, manifest, parts) for kind, (manifest, parts) in made]


def sign(digest: str, registry: Registry, repository: str, key: PrivateKey) -> str:
    """Store cosign's signature of the manifest *digest* under its tag, which is returned; other signatures stay."""
    from graftwork.images.signature import SIG, sign_image, tag_of

    name = f"{registry.host}/{repository}"
    return _store(registry, repository, tag_of(digest, SIG), lambda held: sign_image(key, digest, name, held))


def store_signed(found: Documents, registry: Registry, repository: str) -> str:
    """Store the signed provenance as cosign does, under its tag, which is returned; '' where it is not signed."""
    from graftwork.images.signature import ATT, attestation, tag_of

    envelope, image = found.envelope, found.subject.digest
    if envelope is None:
        return ""
    return _store(registry, repository, tag_of(image, ATT), lambda held: attestation(envelope, image, held))


def verify(digest: str, registry: Registry, repository: str, key: PublicKey) -> None:
    """ProofError unless a signature of *digest* by *key* is in the registry."""
    from graftwork.images.signature import SIG, tag_of, verify_image

    tag = tag_of(digest, SIG)
    manifest = _stored(registry, repository, tag)
    if manifest is None:
        raise ProofError(f"{registry.host}/{repository}@{digest} has no signature ({tag})", hint="push it with --key")
    verify_image(key, digest, manifest.raw, _parts(registry, repository, manifest))


def verify_signed(digest: str, registry: Registry, repository: str, key: PublicKey) -> bool:
    """Whether signed provenance of the manifest *digest* is in the registry; ProofError if none of it is *key*'s."""
    from graftwork.images.signature import ATT, tag_of, verify_provenance

    manifest = _stored(registry, repository, tag_of(digest, ATT))
    if manifest is not None:
        verify_provenance(key, digest, manifest.raw, _parts(registry, repository, manifest))
    return manifest is not None


def _store(registry: Registry, repository: str, tag: str, made: Callable[[bytes | None], Attachment]) -> str:
    """What is *made* of the manifest that *tag* has now, if any, under that tag."""
    held = _stored(registry, repository, tag)
    attachment = made(held.raw if held else None)
    for blob in attachment.blobs:
        _push(registry, repository, blob)
    registry.put_manifest(repository, read_manifest(attachment.manifest, "", f"{repository}:{tag}"), attachment.tag)
    return attachment.tag


def _stored(registry: Registry, repository: str, tag: str) -> Document | None:
    from graftwork.oci.errors import NotFoundError

    try:
        return registry.manifest(repository, tag)
    except NotFoundError:
        return None


def _parts(registry: Registry, repository: str, manifest: Document) -> dict[str, bytes]:
    return {layer.digest: registry.read_blob(repository, layer) for layer in manifest.layers}


def _push(registry: Registry, repository: str, blob: bytes) -> None:
    registry.push_blob(repository, sha256_digest(blob), len(blob), lambda start: io.BytesIO(blob[start:]))
