"""For people who build with BuildKit: a Dockerfile and a bake file that put the payload on the pinned base."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from graftwork.catalog.targets import Target
from graftwork.images.record import CHECK_PATH, Record
from graftwork.oci.layout import replace_file


def write(target: Target, record: Record, base: str | None, folder: Path) -> list[Path]:
    """Write ``Dockerfile`` and ``docker-bake.json`` into *folder*, beside the payload's layout ``oci``.

    COPY cannot white out, so the stale bytecode that the record names is removed before the self-check runs.
    """
    image = base or f"{target.base.image}@{target.base.digest}"
    root = record.engine.root.rstrip("/")
    stale = " ".join(shlex.quote(f"{root}/{path}") for path in record.whiteouts) or "/nonexistent"
    text = f"""\
# Written by graftwork for target {target.name}; build with: docker buildx bake -f docker-bake.json
FROM {image}
COPY --from=payload / /
RUN rm -f {stale} && {shlex.quote(target.base.interpreter)} /{CHECK_PATH}
"""
    bake = {
        "target": {
            "default": {
                "context": ".",
                "contexts": {"payload": f"oci-layout://./oci:{target.name}"},
                "dockerfile": "Dockerfile",
                "tags": [f"{target.name}:latest"],
                "platforms": [f"linux/{target.base.arch}"],
            }
        }
    }
    files = [folder / "Dockerfile", folder / "docker-bake.json"]
    replace_file(files[0], text.encode("utf-8"))
    replace_file(files[1], (json.dumps(bake, indent=2, sort_keys=True) + "\n").encode("utf-8"))
    return files
