"""Puts the layers together: configuration, manifest, index, in the media types of either family."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal, Protocol

from graftwork.catalog.targets import Target
from standin.debian import Python
from standin.layers import Blob

Family = Literal["oci", "docker"]
_OCI = "application/vnd.oci.image"
_DOCKER = "application/vnd.docker"
TYPES: dict[Family, dict[str, str]] = {
    "oci": {
        "manifest": f"{_OCI}.manifest.v1+json",
        "index": f"{_OCI}.index.v1+json",
        "config": f"{_OCI}.config.v1+json",
        "gzip": f"{_OCI}.layer.v1.tar+gzip",
        "zstd": f"{_OCI}.layer.v1.tar+zstd",
        "none": f"{_OCI}.layer.v1.tar",
    },
    "docker": {
        "manifest": f"{_DOCKER}.distribution.manifest.v2+json",
        "index": f"{_DOCKER}.distribution.manifest.list.v2+json",
        "config": f"{_DOCKER}.container.image.v1+json",
        "gzip": f"{_DOCKER}.image.rootfs.diff.tar.gzip",
        "zstd": f"{_DOCKER}.image.rootfs.diff.tar.zstd",
        "none": f"{_DOCKER}.image.rootfs.diff.tar",
    },
}


@dataclass(frozen=True)
class Document:
    """A manifest, index or configuration, with what a descriptor says of it."""

    data: bytes
    media_type: str

    @property
    def digest(self) -> str:
        return "sha256:" + hashlib.sha256(self.data).hexdigest()

    @property
    def descriptor(self) -> dict[str, Any]:
        return {"mediaType": self.media_type, "digest": self.digest, "size": len(self.data)}


class Sink(Protocol):
    """Where the image goes: a layout, or a registry."""

    def layer(self, blob: Blob) -> None:
        """Take a layer; its file is the sink's to move or remove."""

    def config(self, document: Document) -> None:
        """Take a configuration."""

    def manifest(self, document: Document, *, top: bool) -> None:
        """Take a manifest or index; the *top* one gets the name."""


def document(content: dict[str, Any], media_type: str) -> Document:
    """*content* as the bytes to store."""
    return Document(json.dumps(content, separators=(",", ":")).encode(), media_type)


def assemble(
    sink: Sink,
    layers: Sequence[Blob],
    target: Target,
    python: Python,
    epoch: int,
    family: Family,
    platforms: Sequence[str],
) -> Document:
    """Give *sink* a manifest for each of *platforms* (all with the same layers), and an index if there are several."""
    types = TYPES[family]
    found = []
    for platform in platforms:
        config = document(_config(layers, target, python, epoch, platform), types["config"])
        sink.config(config)
        content = {
            "schemaVersion": 2,
            "mediaType": types["manifest"],
            "config": config.descriptor,
            "layers": [
                {"mediaType": types[blob.compression], "size": blob.size, "digest": blob.digest} for blob in layers
            ],
        }
        manifest = document(content, types["manifest"])
        sink.manifest(manifest, top=len(platforms) == 1)
        found.append((manifest, platform))
    if len(found) == 1:
        return found[0][0]
    described = [{**item.descriptor, "platform": _platform(platform)} for item, platform in found]
    content = {"schemaVersion": 2, "mediaType": types["index"], "manifests": described}
    index = document(content, types["index"])
    sink.manifest(index, top=True)
    return index


def _platform(text: str) -> dict[str, str]:
    system, _, architecture = text.partition("/")
    return {"architecture": architecture, "os": system}


def _config(layers: Sequence[Blob], target: Target, python: Python, epoch: int, platform: str) -> dict[str, Any]:
    """As a base's builder leaves it: its own environment, entrypoint, a health check, and steps without a layer."""
    created = datetime.fromtimestamp(epoch, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    steps: list[dict[str, Any]] = [{"created": created, "created_by": blob.created_by} for blob in layers]
    silent = [{"created": created, "created_by": f"ENV STANDIN={n}", "empty_layer": True} for n in range(2)]
    venv = target.base.interpreter.rpartition("/")[0]
    return {
        **_platform(platform),
        "created": created,
        "author": "graftwork stand-in",
        "config": {
            "Env": [f"PATH={venv}:/usr/local/bin:/usr/bin:/bin", "STANDIN=1", "LANG=C.UTF-8"],
            "Entrypoint": [target.base.interpreter],
            "Cmd": ["--version"],
            "WorkingDir": "/sgl-workspace",
            "Healthcheck": {"Test": ["CMD", "/bin/true"], "Interval": 30000000000},
            "StopSignal": "SIGINT",
            "ExposedPorts": {"30000/tcp": {}},
            "Labels": {
                "graftwork.standin": "true",
                "graftwork.standin.target": target.name,
                "graftwork.standin.python": f"{python.minor} ({python.origin}); the real base has {target.base.python}",
                "org.opencontainers.image.title": f"STAND-IN for {target.base.image}: for tests only, not real",
            },
        },
        "history": [*steps[:1], *silent, *steps[1:]],
        "rootfs": {"type": "layers", "diff_ids": [blob.diff_id for blob in layers]},
    }
