"""Bytecode beside a source file in a folder: stale files go, a hash-checked one comes."""

from __future__ import annotations

import os
import py_compile
import re
import sys
from pathlib import Path


def minor_of(file: Path) -> str | None:
    """The Python minor version ("3.10") that a folder's files belong to, told by its path or its bytecode."""
    for part in reversed(file.parts[:-1]):
        if found := re.fullmatch(r"python(3\.\d+)", part):
            return found[1]
    tags = {pyc.name.split(".")[-2] for pyc in (file.parent / "__pycache__").glob("*.cpython-3*.pyc")}
    tags = {tag for tag in tags if re.fullmatch(r"cpython-3\d+", tag)}
    return f"3.{tags.pop()[9:]}" if len(tags) == 1 else None


def purge(file: Path) -> None:
    """Remove every bytecode file that any interpreter might load for *file*."""
    for folder in _folders(file):
        for pyc in folder.glob("*.pyc"):
            if pyc.name.startswith(f"{file.stem}.") and pyc.name.count(".") >= 2:
                pyc.unlink()
        if folder.name == "__pycache__" and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def write_checked(file: Path, python: str | None) -> None:
    """Write a hash-checked .pyc (PEP 552) if *python*, the tree's minor version, is this interpreter's."""
    if file.suffix == ".py" and python == f"3.{sys.version_info.minor}":
        py_compile.compile(
            str(file), doraise=True, optimize=0, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH
        )


def _folders(file: Path) -> list[Path]:
    folders = [file.parent / "__pycache__"]
    prefix = os.environ.get("PYTHONPYCACHEPREFIX")
    if prefix:
        folders.append(Path(prefix) / file.parent.resolve().relative_to("/"))
    return folders
