"""For people who build with BuildKit or another builder: a Dockerfile, a bake file, the payload's files as a tar."""

from __future__ import annotations

import io
import json
import shlex
import tarfile
from pathlib import Path

from graftwork.catalog.targets import Target
from graftwork.errors import TreeError, UsageError
from graftwork.images.layer import WHITEOUT
from graftwork.images.prove import layer_tar
from graftwork.images.record import CHECK_PATH, Record
from graftwork.oci.layout import read_layout, replace_file

_FILES = "payload.tar"


def write(target: Target, record: Record, base: str | None, folder: Path) -> list[Path]:
    """Write ``Dockerfile``, ``docker-bake.json`` and ``payload.tar`` into *folder*, beside the layout ``oci``.

    ADD keeps owner, mode and time of each file, but cannot white out: the stale bytecode that the record names is
    removed before the self-check runs, as the base's own user.
    """
    image = base or target.base.pinned
    if not image:
        raise UsageError(f"target {target.name} pins no base for a Dockerfile", hint="name one: --base REF")
    root = record.engine.root.rstrip("/")
    stale = " ".join(shlex.quote(f"{root}/{path}") for path in record.whiteouts) or "/nonexistent"
    text = f"""\
# Written by graftwork for target {target.name}; build here with: docker buildx bake, or docker build --network=none .
FROM {image}
ADD {_FILES} /
RUN rm -f {stale} && {shlex.quote(target.base.interpreter)} /{CHECK_PATH}
"""
    bake = {
        "target": {
            "default": {
                "context": ".",
                "dockerfile": "Dockerfile",
                "tags": [f"{target.name}:latest"],
                "platforms": [f"linux/{target.base.arch}"],
            }
        }
    }
    written = {
        "Dockerfile": text.encode("utf-8"),
        "docker-bake.json": (json.dumps(bake, indent=2, sort_keys=True) + "\n").encode("utf-8"),
        _FILES: _files(layer_tar(read_layout(folder / "oci", target.name))),
    }
    try:
        for name, data in written.items():
            replace_file(folder / name, data)
    except OSError as error:
        raise TreeError(f"cannot write to {folder}: {error.strerror}", hint="Check its owner and space.") from error
    return [folder / name for name in written]


def _files(layer: bytes) -> bytes:
    """The regular files of a payload's tar. Its folders are the base's already, and white-outs mean nothing to ADD."""
    out = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(layer), mode="r:", encoding="utf-8") as whole,
        tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as files,
    ):
        for member in whole:
            if member.isreg() and not member.name.rpartition("/")[2].startswith(WHITEOUT):
                files.addfile(member, whole.extractfile(member))
    return out.getvalue()
