"""A tree that is a folder on disk: an unpacked wheel, a site-packages folder or a source checkout."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from graftwork.errors import MissingFile, TreeError
from graftwork.names import RelPath, rel_path

_NOT_SOURCE = frozenset({".git", ".graftwork"})


class FolderTree:
    """The files below *root*. Links are followed while they stay inside it; ``root`` is resolved."""

    def __init__(self, root: Path) -> None:
        try:
            self.root = root.resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise TreeError(f"{root}: no such folder ({_reason(error)})", hint="Check --tree.") from error
        if not self.root.is_dir():
            raise TreeError(f"{root}: not a folder", hint="Give --tree the folder that holds the package.")
        self.origin = str(root)

    def real(self, path: RelPath) -> Path:
        """Where *path* lies on disk, links resolved; it need not exist. TreeError if it leaves the root."""
        inside = self.root / _checked(path)
        real = Path(os.path.realpath(inside))
        if not real.is_relative_to(self.root):
            raise TreeError(
                f"{self._leaving_link(inside)} is a link to {real}, which is outside the tree {self.root}",
                hint="Give --tree the folder that really holds the package, or replace the link by the file.",
            )
        return real

    def read(self, path: RelPath) -> bytes:
        """The file's bytes. Raises MissingFile, or TreeError for what is not a readable regular file."""
        real = self.real(path)
        try:
            # O_NONBLOCK: opening a FIFO must not hang; O_NOFOLLOW: the path was resolved just now.
            fd = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    hint = "Only plain files can be patched."
                    raise TreeError(f"{path} in {self.origin}: not a regular file", hint=hint)
                with os.fdopen(fd, "rb", closefd=False) as file:
                    return file.read()
            finally:
                os.close(fd)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MissingFile(f"{path}: not in {self.origin}") from error
        except OSError as error:
            raise TreeError(f"{path} in {self.origin}: cannot be read ({_reason(error)})") from error

    def exists(self, path: RelPath) -> bool:
        """Whether *path* is a regular file. TreeError if a link on the way leaves the tree."""
        real = self.real(path)
        try:
            return real.is_file()
        except OSError as error:
            raise TreeError(f"{path} in {self.origin}: cannot be read ({_reason(error)})") from error

    def paths(self) -> Iterator[RelPath]:
        """Every regular file, sorted by folder, without ``.git`` and ``.graftwork``.

        Linked folders are not entered: what they hold inside the tree is listed where it lies. Linked
        files are listed when they stay inside. Names that no patch can spell (see ``rel_path``) are left out.
        """
        for folder, folders, files in os.walk(self.root, onerror=self._unlistable):
            folders[:] = sorted(name for name in folders if name not in _NOT_SOURCE)
            for name in sorted(files):
                file = Path(folder, name)
                if name not in _NOT_SOURCE and self._is_inside_file(file):
                    try:
                        path = rel_path(file.relative_to(self.root).as_posix())
                    except ValueError:
                        continue
                    yield path

    def _is_inside_file(self, file: Path) -> bool:
        real = Path(os.path.realpath(file)) if file.is_symlink() else file
        return real.is_relative_to(self.root) and real.is_file()

    def _leaving_link(self, inside: Path) -> Path:
        """The first link on the way to *inside* after which the path is outside the root."""
        step = self.root
        for part in inside.relative_to(self.root).parts:
            step = step / part
            if not Path(os.path.realpath(step)).is_relative_to(self.root):
                return step
        return inside

    def _unlistable(self, error: OSError) -> None:
        raise TreeError(f"{error.filename}: cannot be listed ({_reason(error)})") from error


def open_folder(path: Path, package: str) -> FolderTree:
    """The tree of ``--tree PATH``: PATH holds the package, or is a source checkout with ``python/<package>``.

    The tree's root becomes the folder above the package. TreeError when neither is there.
    """
    if path.is_file() and path.suffix == ".whl":
        raise TreeError(f"{path}: is a wheel, not a folder", hint="Unpack it, or leave --tree out.")
    FolderTree(path)
    tried = [path, path / "python"]
    found = [root for root in tried if (root / package).is_dir()]
    # A checkout may hold a namesake folder without code at its top.
    found.sort(key=lambda root: not (root / package / "__init__.py").exists())
    if not found:
        above = path.resolve().parent
        itself = path.resolve().name == package and (path / "__init__.py").exists()
        raise TreeError(
            f"{path}: holds no package {package!r} (looked for {path / package} and {path / 'python' / package})",
            hint=f"Give --tree the folder above the package: {above}"
            if itself
            else f"Give --tree a folder that holds {package}/ or a source checkout with python/{package}/.",
        )
    tree = FolderTree(found[0])
    tree.real(RelPath(package))
    tree.origin = str(path)
    return tree


def _checked(path: str) -> RelPath:
    try:
        return rel_path(path)
    except ValueError as error:
        raise TreeError(str(error)) from error


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error)
