"""Unpack a payload's layer: ``python unpack.py LAYER.tar.gz FOLDER``. Files only; white-outs are mounts in a pod."""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
from pathlib import Path


def main(arguments: list[str]) -> int:
    """Write every regular file of the layer; 1 if it has none."""
    source, folder = arguments
    count = 0
    with tarfile.open(source, "r:gz") as layer:
        for member in layer:
            if member.isreg() and not Path(member.name).name.startswith(".wh."):
                put(layer, member, Path(folder))
                count += 1
    sys.stdout.write(f"{count} files in {folder}\n")
    return 0 if count else 1


def put(layer: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """One file, with its bytes, permissions and time: the time decides which bytecode Python trusts."""
    parts = member.name.split("/")
    if ".." in parts or "" in parts:
        raise SystemExit(f"{member.name!r} would be written outside of the folder")
    place = folder.joinpath(*parts)
    place.parent.mkdir(parents=True, exist_ok=True)
    data = layer.extractfile(member)
    assert data is not None, "only regular files come here"
    with data, place.open("wb") as file:
        shutil.copyfileobj(data, file)
    place.chmod(member.mode & 0o777)
    os.utime(place, (member.mtime, member.mtime))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
