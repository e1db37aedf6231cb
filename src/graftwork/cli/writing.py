"""The files that verbs write: whole, or as they were."""

from __future__ import annotations

import os
from pathlib import Path

from graftwork.errors import TreeError

_HINT = "check its folder, owner and space, or name another file"


def write(file: Path, data: bytes, *, folders: bool = False) -> None:
    """Write *file* in one step, with *folders* also those above it. What is no plain file, as a pipe, is written into.

    TreeError if it cannot be.
    """
    from graftwork.oci.layout import replace_file

    try:
        if folders:
            file.parent.mkdir(parents=True, exist_ok=True)
        if file.is_symlink() or (file.exists() and not file.is_file()):
            file.write_bytes(data)
        else:
            replace_file(file, data)
    except OSError as error:
        raise TreeError(f"{file}: cannot be written: {error.strerror}", hint=_HINT) from error


def check(file: Path) -> None:
    """TreeError if *file* cannot be written, before the work that it is to hold."""
    if file.is_dir() or not file.parent.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise TreeError(f"{file}: cannot be written", hint=_HINT)
