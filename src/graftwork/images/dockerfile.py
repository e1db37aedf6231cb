"""For people who build with BuildKit: a Dockerfile and a bake file that put the payload on the pinned base."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

from graftwork.catalog.targets import Target
from graftwork.errors import TreeError, UsageError
from graftwork.images.record import CHECK_PATH, FOLDER, Record
from graftwork.oci.layout import replace_file


def write(target: Target, record: Record, base: str | None, folder: Path) -> list[Path]:
    """Write ``Dockerfile`` and ``docker-bake.json`` into *folder*, beside the payload's layout ``oci``.

    COPY cannot white out, so the stale bytecode that the record names is removed before the self-check runs,
    as the base's own user.
    """
    image = base or target.base.pinned
    if not image:
        raise UsageError(f"target {target.name} pins no base for a Dockerfile", hint="name one: --base REF")
    root = record.engine.root.rstrip("/")
    stale = " ".join(shlex.quote(f"{root}/{path}") for path in record.whiteouts) or "/nonexistent"
    copies = "\n".join(_copies(record, root))
    text = f"""\
# Written by graftwork for target {target.name}; build with: docker buildx bake -f docker-bake.json
FROM {image}
{copies}
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
    try:
        replace_file(files[0], text.encode("utf-8"))
        replace_file(files[1], (json.dumps(bake, indent=2, sort_keys=True) + "\n").encode("utf-8"))
    except OSError as error:
        raise TreeError(f"cannot write to {folder}: {error.strerror}", hint="Check its owner and space.") from error
    return files


def _copies(record: Record, root: str) -> Iterator[str]:
    """A COPY for each folder and owner: of files by name, since COPY of a folder above gives that to root."""
    groups: dict[tuple[str, str], list[str]] = {}
    for file in record.files:
        groups.setdefault((f"{file.uid}:{file.gid}", file.path.rpartition("/")[0]), []).append(file.path)
    for pyc in record.bytecode_files:
        groups.setdefault(("0:0", pyc.path.rpartition("/")[0]), []).append(pyc.path)
    for (owner, folder), paths in sorted(groups.items()):
        words = [*(f"{root}/{path}" for path in sorted(paths)), f"{root}/{folder}/"]
        yield f"COPY --from=payload --chown={owner} {json.dumps(words)}"
    own = [f"/{record.path}", f"/{CHECK_PATH}", f"/{FOLDER}/"]
    yield f"COPY --from=payload {json.dumps(own)}"
