"""How an image came about, as an in-toto statement, and how documents are attached to the image that they are about.

Sources: in-toto attestation v1 (statement, resource descriptor), SLSA provenance v1, OCI image-spec 1.1 (artifacts).
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from graftwork.catalog.catalog import Catalog, Patch
from graftwork.catalog.patches import Diff, Edit, NewFile
from graftwork.errors import ProofError, TreeError, UsageError
from graftwork.images.record import Base, Record, render_record
from graftwork.names import RelPath, digest, rel_path
from graftwork.oci.canonical import canonical_json
from graftwork.oci.model import CONFIG, MANIFEST, Descriptor, describe, sha256_digest
from graftwork.oci.reference import ImageRef

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
IN_TOTO = "application/vnd.in-toto+json"
EMPTY = "application/vnd.oci.empty.v1+json"
# Names of ours in the urn scheme: stable, and they claim nobody's domain.
BUILD_TYPE = "urn:graftwork:build:image:v1"
BUILDER = "urn:graftwork:builder"
NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, BUILDER)

_EMPTY_BLOB = b"{}"
_LOCAL = ("oci:", "docker:", "docker-archive:")


def statement(
    record: Record, image: Descriptor, layer: str, inputs: Mapping[RelPath, str], *, name: str = "", base: Base | None
) -> bytes:
    """The statement about *image*, a manifest of one platform, as JSON in one form; a function of its arguments alone.

    *layer* is the payload layer's digest, *inputs* the sha256 of each catalog file by its path in the checkout (see
    ``catalog_inputs``), *name* the reference that the image is pushed as ('' where there is none), *base* what it was
    grafted on (None: a bare payload, which then depends on no image). A base that is no registry's is named by digest
    only: the path of a local folder is nobody else's business.
    """
    definition = {
        "buildType": BUILD_TYPE,
        "externalParameters": {
            "target": record.target,
            "platform": record.platform,
            "sourceDateEpoch": record.epoch,
            "base": base_uri(base, record.platform) if base else None,
        },
        "internalParameters": {
            "engine": {"name": record.engine.name, "version": record.engine.version, "root": record.engine.root},
            "python": record.python,
            "bytecode": record.bytecode,
            "patches": [{"id": row.id, "revision": row.revision, "state": row.state} for row in record.patches],
        },
        "resolvedDependencies": list(_dependencies(record, inputs, base)),
    }
    subjects = [{"name": portable(name) or record.target, **_digest_set(image.digest)}]
    subjects.append({"name": f"{record.target} payload layer", **_digest_set(layer)})
    unique = canonical_json([definition, subjects]).decode()
    details = {
        "builder": {"id": BUILDER, "version": {"graftwork": record.graftwork}},
        "metadata": {"invocationId": f"urn:uuid:{uuid.uuid5(NAMESPACE, unique)}"},
        "byproducts": [{"name": record.path, **_digest_set(sha256_digest(render_record(record)))}],
    }
    predicate = {"buildDefinition": definition, "runDetails": details}
    return canonical_json({"_type": STATEMENT, "subject": subjects, "predicateType": PREDICATE, "predicate": predicate})


def check_statement(data: bytes, image: str, record: Record | None = None) -> dict[str, Any]:
    """The statement, if it is provenance of the image with digest *image* and, where given, of that *record*.

    ProofError says what differs. Who made the statement is for a signature to say.
    """
    found = parse_object(data, "the provenance")
    for key, want in (("_type", STATEMENT), ("predicateType", PREDICATE)):
        if found.get(key) != want:
            raise ProofError(f"the provenance has {key} {found.get(key)!r}, expected {want!r}")
    subjects = [f"sha256:{value}" for value in _hashes(found.get("subject"))]
    if image not in subjects:
        raise ProofError(
            f"the provenance is about {', '.join(subjects) or 'nothing'}, not about the image {image}",
            hint="It belongs to another build: attach the one that was written beside this image.",
        )
    if record is not None:
        details = _inner(found, "predicate", "runDetails")
        written = [row for row in _rows(details.get("byproducts")) if row.get("name") == record.path]
        want = sha256_digest(render_record(record))
        if (have := [f"sha256:{value}" for value in _hashes(written)]) != [want]:
            raise ProofError(f"the provenance names the record {', '.join(have) or 'nowhere'}, the image holds {want}")
    return found


def catalog_inputs(catalog: Catalog, target: str, patches: Sequence[Patch]) -> dict[RelPath, str]:
    """Path in the checkout -> sha256 (hex) of every file that decided what was built: target, lock, patches, edits.

    *patches* are those of the target called *target*.
    """
    files = {catalog.target_file(target), catalog.lock_file(target)}
    for patch in patches:
        files |= set(_patch_files(patch))
    found = {}
    for file in sorted(files):
        try:
            found[rel_path(file.relative_to(catalog.root).as_posix())] = hashlib.sha256(file.read_bytes()).hexdigest()
        except OSError as error:
            raise TreeError(f"cannot read {file}: {error.strerror}") from error
    return found


def artifact(
    subject: Descriptor, artifact_type: str, payload: bytes, media_type: str, annotations: Mapping[str, str], epoch: int
) -> tuple[bytes, list[bytes]]:
    """An OCI 1.1 artifact manifest about *subject*, and the blobs that must be in the repository before it.

    *epoch*, seconds since 1970, becomes ``org.opencontainers.image.created``; the same arguments give the same bytes.
    """
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": artifact_type,
        "config": {**_blob(_EMPTY_BLOB, EMPTY), "data": "e30="},
        "layers": [_blob(payload, media_type)],
        "subject": {"mediaType": subject.media_type, "digest": digest(subject.digest), "size": subject.size},
        "annotations": {**annotations, "org.opencontainers.image.created": utc(epoch).strftime("%Y-%m-%dT%H:%M:%SZ")},
    }
    return canonical_json(manifest), [payload, _EMPTY_BLOB]


@dataclass(frozen=True)
class Attachment:
    """What to store where cosign looks for it: *blobs* first, then *manifest* under *tag*."""

    manifest: bytes
    blobs: tuple[bytes, ...]
    tag: str


def cosign_manifest(layer: Descriptor, blob: bytes, tag: str, existing: bytes | None) -> Attachment:
    """An image with one layer for each signature: those of the manifest *existing* are kept, *layer* comes last."""
    ours: dict[str, Any] = msgspec.to_builtins(layer)
    layers = [*(item for item in (manifest_layers(existing) if existing else []) if item != ours), ours]
    rootfs = {"type": "layers", "diff_ids": [item.get("digest") for item in layers]}
    config = canonical_json({"architecture": "", "os": "", "config": {}, "rootfs": rootfs})
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": describe(config, CONFIG), "layers": layers}
    return Attachment(canonical_json(manifest), (blob, config), tag)


def manifest_layers(manifest: bytes) -> list[dict[str, Any]]:
    """The layers of a manifest that holds signatures, as they are; ProofError if it has no such list."""
    found = parse_object(manifest, "the signature manifest").get("layers")
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise ProofError("the signature manifest has no list of layers")
    return found


def utc(epoch: int) -> datetime:
    """*epoch*, in seconds, as a time."""
    return datetime.fromtimestamp(epoch, timezone.utc)


def parse_object(data: bytes, what: str) -> dict[str, Any]:
    """A JSON object; ProofError naming *what* if it is something else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProofError(f"{what} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ProofError(f"{what} is not a JSON object")
    return found


def portable(name: str) -> str:
    """An image's *name* as others may read it: of a registry as it is, of this machine ''."""
    if not name or name.startswith(_LOCAL):
        return ""
    try:
        return str(ImageRef.parse(name))
    except UsageError:
        return ""


def image_uri(name: str, value: str, platform: str = "", fallback: str = "image") -> str:
    """The package URL (type ``oci``) of the image with digest *value*; without a portable name it is a *fallback*."""
    known = portable(name)
    ref = ImageRef.parse(known) if known else None
    options = {
        "arch": platform.partition("/")[2].partition("/")[0],
        "repository_url": ref.name if ref else "",
        "tag": (ref.tag or "") if ref else "",
    }
    title = ref.repository.rpartition("/")[2] if ref else fallback
    return _purl(f"oci/{quote(title)}", value, options)


def base_uri(base: Base, platform: str) -> str:
    """The package URL of a base; where it has no portable name, it is ``base`` with its digest."""
    return image_uri(base.image, base.digest, platform, fallback="base")


def wheel_uri(record: Record) -> str:
    """The package URL of the wheel that the pristine text came from."""
    return engine_uri(record, file_name=record.wheel.file)


def engine_uri(record: Record, **options: str) -> str:
    """The package URL (type ``pypi``) of the engine."""
    return _purl(f"pypi/{quote(record.engine.name.lower().replace('_', '-'))}", record.engine.version, options)


def _purl(name: str, version: str, options: Mapping[str, str]) -> str:
    pairs = [f"{key}={quote(value, safe='/:')}" for key, value in sorted(options.items()) if value]
    return f"pkg:{name}@{quote(version, safe=':')}" + (f"?{'&'.join(pairs)}" if pairs else "")


def _dependencies(record: Record, inputs: Mapping[RelPath, str], base: Base | None) -> Iterator[dict[str, Any]]:
    """Resource descriptors, in an order that is the same for the same inputs."""
    if base:
        yield {"uri": base_uri(base, record.platform), **_digest_set(base.digest)}
    yield {"name": record.wheel.file, "uri": wheel_uri(record), "digest": {"sha256": record.wheel.sha256}}
    if record.wheel.record_sha256:
        yield {"name": f"{record.wheel.file}: RECORD", "digest": {"sha256": record.wheel.record_sha256}}
    for path, sha256 in sorted(inputs.items()):
        yield {"name": path, "digest": {"sha256": sha256}}


def _patch_files(patch: Patch) -> Iterator[Path]:
    """patch.toml and all that it names; its tests and README decide nothing."""
    yield patch.folder / "patch.toml"
    edits: list[Edit] = [*patch.spec.edit, *(edit for old in patch.earlier for edit in old.edits)]
    yield from (patch.folder / old.edits for old in patch.spec.earlier)
    for edit in edits:
        if isinstance(edit, Diff | NewFile):
            source = patch.folder / edit.source
            inner = source.rglob("*") if source.is_dir() else [source]
            yield from (file for file in inner if file.is_file() and "__pycache__" not in file.parts)


def _digest_set(value: str) -> dict[str, dict[str, str]]:
    return {"digest": {"sha256": digest(value).partition(":")[2]}}


def _blob(data: bytes, media_type: str) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": sha256_digest(data), "size": len(data)}


def _rows(value: object) -> list[dict[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _hashes(value: object) -> list[str]:
    """The sha256 of each resource descriptor in a list."""
    sets = [row.get("digest") for row in _rows(value)]
    return [str(item["sha256"]) for item in sets if isinstance(item, dict) and "sha256" in item]


def _inner(found: dict[str, Any], *keys: str) -> dict[str, Any]:
    for key in keys:
        inner = found.get(key)
        if not isinstance(inner, dict):
            raise ProofError(f"the provenance has no {key}")
        found = inner
    return found
