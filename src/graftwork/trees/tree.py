"""What every source of engine files looks like to ``plan`` and ``prove``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from graftwork.names import RelPath


class Tree(Protocol):
    """A read-only set of files below one root, named by paths such as ``sglang/srt/x.py``."""

    @property
    def origin(self) -> str:
        """Where the files come from, for messages; redacted."""

    def read(self, path: RelPath) -> bytes:
        """The file's bytes. Raises MissingFile, or TreeError if it leaves the tree."""

    def exists(self, path: RelPath) -> bool:
        """Whether *path* is a regular file of the tree."""

    def paths(self) -> Iterable[RelPath]:
        """Every regular file of the tree."""
