"""The payload image: one deterministic layer with the patched files, their bytecode, the record and the self-check."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from graftwork import __version__
from graftwork.errors import TreeError, UsageError
from graftwork.images import record as records
from graftwork.images.interpreters import need_interpreter, self_check
from graftwork.images.layer import Entry, Kind, Layer, build_layer
from graftwork.images.record import BytecodeFile, File, Record, pyc_paths, render_record
from graftwork.names import Digest, RelPath, TargetName
from graftwork.oci.layout import replace_file, write_layout
from graftwork.oci.model import (
    CONFIG,
    LAYER_GZIP,
    MANIFEST,
    Descriptor,
    History,
    ImageConfig,
    Manifest,
    Platform,
    RootFS,
    RunConfig,
    describe,
    encode,
)

LABEL = "graftwork."


@dataclass(frozen=True)
class PayloadFile:
    """A file to ship: its new bytes, permission bits, the sha256 of its pristine text (None: new), who changed it."""

    data: bytes
    mode: int = 0o644
    pristine: str | None = None
    patches: tuple[str, ...] = ()
    uid: int = 0
    gid: int = 0


@dataclass(frozen=True)
class PayloadSpec:
    """Everything that a payload is made of; the same spec gives the same digest anywhere.

    Paths are relative to ``engine.root``, the absolute folder in the base that holds the package. *python* is the
    base's minor version ("3.10"), *platform* ``os/architecture``, *epoch* the seconds since 1970 of every time in it.
    """

    target: TargetName
    engine: records.Engine
    python: str
    platform: str
    base: records.Base
    wheel: records.Wheel
    files: Mapping[RelPath, PayloadFile]
    patches: tuple[records.Patch, ...]
    markers: tuple[records.Marker, ...]
    epoch: int
    launch: records.Launch = field(default_factory=records.Launch)
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    bytecode: records.Policy = "whiteout"
    folders: tuple[records.Folder, ...] = ()


@dataclass(frozen=True)
class Payload:
    """A finished payload on disk. *digest* is the manifest's; *record_file* a copy of the record in the layer."""

    digest: Digest
    layout: Path
    record_file: Path
    record: Record
    layer: Layer
    manifest: Descriptor
    config: ImageConfig


def build_payload(spec: PayloadSpec, dist: Path) -> Payload:
    """Write ``dist/<target>/oci`` and ``dist/<target>/record.json``; it is not proved yet (see prove.prove_layer).

    ProofError (exit 4) if the policy is ``checked`` and this host has no Python of that version; UsageError for paths
    that a layer cannot hold; TreeError if *dist* cannot be written.
    """
    if not 0 <= spec.epoch < 1 << 33:
        raise UsageError(f"epoch {spec.epoch} is not a time in seconds since 1970 that a layer can hold")
    if odd := [f"{path} ({file.mode:o})" for path, file in spec.files.items() if not 0 <= file.mode <= 0o777]:
        raise UsageError(f"not plain permission bits: {', '.join(odd)}")
    bytecode = dict(_bytecode(spec)) if spec.bytecode == "checked" else {}
    record = record_for(spec, bytecode)
    layer = build_layer(_entries(spec, record, bytecode), mtime=spec.epoch)
    settings = _config(spec, record, layer)
    config = encode(settings)
    manifest = Manifest(2, describe(config, CONFIG), [describe(layer.blob, LAYER_GZIP)], MANIFEST)
    folder = dist / spec.target
    descriptor = write_layout(folder / "oci", spec.target, manifest, config, [layer.blob])
    try:
        replace_file(folder / "record.json", render_record(record))
    except OSError as error:
        raise TreeError(f"cannot write {folder / 'record.json'}: {error}") from error
    return Payload(
        Digest(descriptor.digest), folder / "oci", folder / "record.json", record, layer, descriptor, settings
    )


def _bytecode(spec: PayloadSpec) -> Iterator[tuple[str, bytes]]:
    """A hash-checked .pyc of every patched source, by the base's Python version."""
    interpreter = need_interpreter(spec.python)
    for path, file in spec.files.items():
        if path.endswith(".py"):
            yield pyc_paths(path, spec.python)[0], interpreter.checked_pyc(file.data, f"{spec.engine.root}/{path}")


def record_for(spec: PayloadSpec, bytecode: Mapping[str, bytes]) -> Record:
    """The record of a payload that carries the .pyc files *bytecode*; all others are whited out."""
    cached = [pyc for path in spec.files if path.endswith(".py") for pyc in pyc_paths(path, spec.python)]
    files = [
        File(
            path,
            _sha256(file.data),
            len(file.data),
            f"{file.mode:04o}",
            file.pristine,
            list(file.patches),
            file.uid,
            file.gid,
        )
        for path, file in sorted(spec.files.items())
    ]
    return Record(
        schema=1,
        graftwork=__version__,
        target=spec.target,
        engine=spec.engine,
        python=spec.python,
        platform=spec.platform,
        base=spec.base,
        wheel=spec.wheel,
        bytecode=spec.bytecode,
        patches=list(spec.patches),
        files=files,
        bytecode_files=[BytecodeFile(path, _sha256(data)) for path, data in sorted(bytecode.items())],
        whiteouts=sorted(set(cached) - set(bytecode)),
        markers=list(spec.markers),
        launch=spec.launch,
        epoch=spec.epoch,
        folders=sorted(spec.folders, key=lambda folder: folder.path),
    )


def _entries(spec: PayloadSpec, record: Record, bytecode: Mapping[str, bytes]) -> Iterator[Entry]:
    root = spec.engine.root.strip("/")

    def at(path: str) -> str:
        return f"{root}/{path}" if root else path

    for path, file in spec.files.items():
        yield Entry(at(path), data=file.data, mode=file.mode, uid=file.uid, gid=file.gid)
    for folder in spec.folders:
        yield Entry(folder.path, Kind.FOLDER, mode=int(folder.mode, 8), uid=folder.uid, gid=folder.gid)
    yield from (Entry(at(path), data=data) for path, data in bytecode.items())
    yield from (Entry(at(path), Kind.WHITEOUT) for path in record.whiteouts)
    yield Entry(record.path, data=render_record(record))
    yield Entry(records.CHECK_PATH, data=self_check())


def _config(spec: PayloadSpec, record: Record, layer: Layer) -> ImageConfig:
    created = datetime.fromtimestamp(spec.epoch, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    platform = Platform.parse(spec.platform)
    labels = {
        "org.opencontainers.image.title": spec.target,
        "org.opencontainers.image.version": spec.engine.version,
        f"{LABEL}version": __version__,
        **({f"{LABEL}base": f"{spec.base.image}@{spec.base.digest}"} if spec.base.digest else {}),
        f"{LABEL}patches": ",".join(f"{patch.id}@{patch.revision}" for patch in spec.patches),
        f"{LABEL}record.sha256": _sha256(render_record(record)),
        **({f"{LABEL}launch": words} if (words := record.launch.words()) else {}),
        **spec.labels,
    }
    notes = [
        History(created, f"graftwork patch {patch.id} {patch.revision}", f"{patch.state}: {patch.title}", True)
        for patch in spec.patches
    ]
    layers = [History(created, f"graftwork image {spec.target}", f"payload: {len(spec.files)} files, record, check")]
    return ImageConfig(
        architecture=platform.architecture,
        os=platform.os,
        variant=platform.variant,
        created=created,
        config=RunConfig([f"{key}={value}" for key, value in sorted(spec.env.items())], labels),
        rootfs=RootFS([layer.diff_id]),
        history=notes + layers,
    )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
