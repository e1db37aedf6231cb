"""Putting a payload layer on an image: pure functions from documents to documents, nothing is moved.

Base layers keep their place and their descriptors. A payload that is already there is taken out first, with
everything it had changed in the configuration, so that grafting a grafted image is grafting its base.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from graftwork.errors import PinError, UsageError
from graftwork.oci.canonical import canonical_json
from graftwork.oci.families import Document, check_layers
from graftwork.oci.model import Descriptor, Platform

PREFIX = "graftwork."
PAYLOAD, UNDO = f"{PREFIX}payload", f"{PREFIX}undo"
INPUT_NAME, INPUT_DIGEST = f"{PREFIX}input.name", f"{PREFIX}input.digest"
BASE_NAME, BASE_DIGEST = "org.opencontainers.image.base.name", "org.opencontainers.image.base.digest"
# moby#26380, buildkit#3067: engines mount at most 127 or 128 layers.
MOST_LAYERS = 125


@dataclass(frozen=True)
class Base:
    """One image of one platform, as served. *name* is what a person calls it, *label* what images made of it say."""

    name: str
    manifest: Document
    config: Document
    label: str = ""

    @property
    def platform(self) -> Platform:
        data = self.config.data
        return Platform(str(data.get("architecture", "")), str(data.get("os", "")), str(data.get("variant") or ""))


@dataclass(frozen=True)
class Addition:
    """What a payload adds: its layer by digest and diff_id, settings, and what ``docker history`` shows."""

    digest: str
    diff_id: str
    size: int
    env: Mapping[str, str]
    labels: Mapping[str, str]
    history: Sequence[Mapping[str, Any]]
    created: str | None = None


@dataclass(frozen=True)
class Grafted:
    """The new documents, and the payload's descriptor in the manifest's family. *replaced*: an old payload is gone."""

    manifest: Document
    config: Document
    payload: Descriptor
    replaced: bool
    input_name: str
    input_digest: str


class _RootFS(msgspec.Struct):
    diff_ids: list[str] | None = None


class _Run(msgspec.Struct, rename="pascal"):
    env: list[str] | None = None
    labels: dict[str, str] | None = None


class _Shape(msgspec.Struct):
    """What grafting takes for granted of a configuration; everything else in it is kept unseen."""

    rootfs: _RootFS | None = None
    config: _Run | None = None
    history: list[dict[str, Any]] | None = None
    created: str | None = None


def usable_config(document: Document, name: str) -> Document:
    """*document*, if it has the shape that grafting needs; UsageError otherwise."""
    try:
        msgspec.convert(document.data, _Shape)
    except msgspec.ValidationError as error:
        raise UsageError(f"the configuration of {name} is not an image's: {error}") from None
    return document


def graft(base: Base, addition: Addition) -> Grafted:
    """Put the payload on top of *base*. UsageError for an image that cannot take it."""
    check_layers(base.manifest, base.name)
    stripped, config, origin = strip(base)
    layers = list(stripped.data["layers"])
    if len(layers) >= MOST_LAYERS:
        raise UsageError(
            f"{base.name} has {len(layers)} layers; engines mount at most 127", hint="squash layers of the base first"
        )
    name, digest = origin or (base.label or base.name, base.manifest.digest)
    payload = Descriptor(stripped.family.layer_gzip, addition.digest, addition.size)
    _configure(config, addition, name, digest)
    new_config = Document(canonical_json(config), config, base.config.media_type)
    manifest = stripped.rewritten(
        config={**stripped.data["config"], "digest": new_config.digest, "size": len(new_config.raw)},
        layers=[*layers, {"mediaType": payload.media_type, "digest": payload.digest, "size": payload.size}],
        annotations=_annotations(stripped, addition, name, digest),
    )
    return Grafted(manifest, new_config, payload, origin is not None, name, digest)


def strip(base: Base) -> tuple[Document, dict[str, Any], tuple[str, str] | None]:
    """The image without a payload: manifest, configuration, and what the payload had been grafted on."""
    config = copy.deepcopy(base.config.data)
    layers = list(base.manifest.data["layers"])
    diff_ids = diff_ids_of(config, len(layers), base.name)
    labels = (config.get("config") or {}).get("Labels") or {}
    if PAYLOAD not in labels:
        return base.manifest, config, None
    if labels[PAYLOAD] not in diff_ids:
        raise PinError(
            f"{base.name}: its label {PAYLOAD} names {labels[PAYLOAD]}, which is not one of its layers",
            hint="it was squashed or its labels were copied; graft onto the image it was made from",
        )
    place = diff_ids.index(labels[PAYLOAD])
    del layers[place], diff_ids[place]
    history = [
        item for item in config.get("history") or [] if not str(item.get("created_by", "")).startswith("graftwork ")
    ]
    config["history"] = history
    origin = (str(labels.get(INPUT_NAME, "")), str(labels.get(INPUT_DIGEST, "")))
    _undo(config, labels.get(UNDO, "{}"), base.name)
    notes = {k: v for k, v in (base.manifest.data.get("annotations") or {}).items() if not k.startswith(PREFIX)}
    if notes.get(BASE_DIGEST) == origin[1]:
        notes.pop(BASE_DIGEST)
        notes.pop(BASE_NAME, None)
    return base.manifest.rewritten(layers=layers, annotations=notes or None), config, origin


def diff_ids_of(config: dict[str, Any], layers: int, name: str) -> list[str]:
    """The sha256 of each layer's tar. PinError if there is not one for each of *layers* layers."""
    diff_ids = (config.get("rootfs") or {}).get("diff_ids")
    if not isinstance(diff_ids, list) or len(diff_ids) != layers:
        found = len(diff_ids) if isinstance(diff_ids, list) else "no"
        raise PinError(f"{name}: the manifest has {layers} layers, its configuration has {found} diff_ids")
    return diff_ids


def _configure(config: dict[str, Any], addition: Addition, name: str, digest: str) -> None:
    """Change *config* in place, and write down what it was."""
    config["rootfs"]["diff_ids"].append(addition.diff_id)
    run = config.get("config") or {}
    undo: dict[str, Any] = {"env": {}, "labels": {}, "created": config.get("created")}
    env = list(run.get("Env") or [])
    for key, value in sorted(addition.env.items()):
        line = f"{key}={value}"
        old = next((i for i, item in enumerate(env) if item.partition("=")[0] == key), None)
        undo["env"][key] = [line, None if old is None else env[old]]
        env = [*env, line] if old is None else [*env[:old], line, *env[old + 1 :]]
    run.pop("Env", None)
    run |= {"Env": env} if env else {}
    labels = dict(run.get("Labels") or {})
    for key, value in addition.labels.items():
        undo["labels"][key] = [value, labels.get(key)]
        labels[key] = value
    labels |= {PAYLOAD: addition.diff_id, INPUT_NAME: name, INPUT_DIGEST: digest}
    labels[UNDO] = canonical_json(undo).decode("utf-8")
    run["Labels"] = labels
    config["config"] = run
    config["history"] = [*(config.get("history") or []), *(dict(item) for item in addition.history)]
    if addition.created is not None:
        config["created"] = addition.created


def _undo(config: dict[str, Any], text: str, name: str) -> None:
    """Give settings their old value where they still have ours; what was set on top of ours stays."""
    try:
        undo = json.loads(text)
        env, labels, created = dict(undo["env"]), dict(undo["labels"]), undo["created"]
    except (ValueError, KeyError, TypeError) as error:
        raise PinError(
            f"{name}: its label {UNDO} cannot be read: {error}", hint="graft onto its base instead"
        ) from None
    run = config["config"]
    lines = []
    for line in run.get("Env") or []:
        key = line.partition("=")[0]
        ours, old = env.get(key, (None, None))
        if line == ours:
            del env[key]  # a name may be there twice: only one line is ours
            lines += [old] if old is not None else []
        else:
            lines.append(line)
    run["Env"] = lines
    kept = {k: v for k, v in run["Labels"].items() if k not in (PAYLOAD, UNDO, INPUT_NAME, INPUT_DIGEST)}
    for key, (ours, old) in labels.items():
        if kept.get(key) == ours:
            kept.pop(key)
            kept |= {key: old} if old is not None else {}
    run["Labels"] = kept
    if created is None:
        config.pop("created", None)
    else:
        config["created"] = created


def _annotations(stripped: Document, addition: Addition, name: str, digest: str) -> dict[str, str] | None:
    """Annotations of the new manifest. Docker's schema has none, so a manifest of that family keeps what it has."""
    notes: dict[str, str] = dict(stripped.data.get("annotations") or {})
    if stripped.family.name == "docker":
        return notes or None
    notes |= {INPUT_NAME: name, INPUT_DIGEST: digest, PAYLOAD: addition.digest}
    # copa#1687: an image that says what it was built on keeps saying so.
    if BASE_DIGEST not in notes:
        notes |= {BASE_NAME: name, BASE_DIGEST: digest}
    return notes
