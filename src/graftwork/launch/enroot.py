"""The image of a deployment for Slurm's containers: enroot makes one squashfs file, pyxis runs the nodes in it.

Reference syntax: NVIDIA/enroot, ``docker://[USER@][REGISTRY#]IMAGE[:TAG]``; by digest from enroot 4 on.
"""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path

from graftwork.oci.reference import DEFAULT_REGISTRY, ImageRef


def uri(image: ImageRef) -> str:
    """How enroot names *image*. With a tag and a digest it is the tag: enroot 3 does not read digests."""
    registry = "" if image.registry == DEFAULT_REGISTRY else f"{image.registry}#"
    version = f":{image.tag}" if image.tag is not None else f"@{image.digest}"
    return f"docker://{registry}{image.repository}{version}"


def squashfs_of(image: ImageRef, folder: Path) -> Path:
    """The file in *folder* for *image*; another reference has another one."""
    return folder / f"image-{hashlib.sha256(str(image).encode()).hexdigest()[:12]}.sqsh"


def import_script(image: ImageRef, folder: Path) -> str:
    """A script that makes the squashfs file of *image* in *folder*, whole or not at all; nothing if it is there."""
    target = shlex.quote(str(squashfs_of(image, folder)))
    lines = ["#!/bin/bash", f"# Make the squashfs file of {image}, once; the job reads it on every node.", "set -eu"]
    lines += [f"[ ! -e {target} ] || exit 0", f"rm -f {target}.part"]
    lines += [f"enroot import --output {target}.part {shlex.quote(uri(image))}", f"mv {target}.part {target}"]
    return "\n".join(lines) + "\n"
