"""A tree with changes on top that were not written anywhere: what a plan works on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from graftwork.errors import MissingFile
from graftwork.names import RelPath
from graftwork.trees.text import decode
from graftwork.trees.tree import Tree


@dataclass
class Overlay:
    """``tree`` with ``changed`` files on top (None: removed). Reads each file of the tree once."""

    tree: Tree
    changed: dict[str, bytes | None] = field(default_factory=dict)
    pristine: dict[str, bytes | None] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        return self.tree.origin

    def read(self, path: RelPath) -> bytes:
        """The file's bytes: an overlay is a tree too."""
        data = self.bytes_of(path)
        if data is None:
            raise MissingFile(f"{path}: no such file in {self.origin}")
        return data

    def exists(self, path: RelPath) -> bool:
        return self.bytes_of(path) is not None

    def paths(self) -> Iterable[RelPath]:
        names = set(self.tree.paths()) | {RelPath(path) for path, data in self.changed.items() if data is not None}
        return sorted(names - {RelPath(path) for path, data in self.changed.items() if data is None})

    def bytes_of(self, path: str) -> bytes | None:
        """The file's bytes, or None if there is no such file."""
        if path in self.changed:
            return self.changed[path]
        return self.original(path)

    def original(self, path: str) -> bytes | None:
        """The file's bytes in the tree below, or None."""
        if path not in self.pristine:
            name = RelPath(path)
            self.pristine[path] = self.tree.read(name) if self.tree.exists(name) else None
        return self.pristine[path]

    def text_of(self, path: str) -> str | None:
        """The file as UTF-8 text, line ends as they are. TreeError if it is something else."""
        data = self.bytes_of(path)
        if data is None:
            return None
        return decode(data, f"{path} in {self.tree.origin}")

    def put(self, path: str, data: bytes | None) -> None:
        """Change *path* on top of the tree."""
        self.changed[path] = data

    def copy(self) -> Overlay:
        """An independent overlay with the same changes; the tree's bytes are shared."""
        return Overlay(self.tree, dict(self.changed), self.pristine)

    def differing(self) -> dict[str, tuple[bytes | None, bytes | None]]:
        """Path -> (bytes in the tree, bytes now) of every file that really differs."""
        pairs = {path: (self.original(path), data) for path, data in self.changed.items()}
        return {path: pair for path, pair in sorted(pairs.items()) if pair[0] != pair[1]}
