"""The engine's version, read from a tree without running anything of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from graftwork.errors import TreeError
from graftwork.names import RelPath, rel_path
from graftwork.trees.folder import FolderTree
from graftwork.trees.text import text_of
from graftwork.trees.tree import Tree

# Written by setuptools-scm (or vcs-versioning) at build time; older releases kept it by hand in version.py.
_FILES = ("_version.py", "version.py")
_NAMES = ("__version__", "version")
_HINT = "Unpack the wheel anew, or give a source checkout."


def engine_version(tree: Tree, package: str) -> str | None:
    """The version of *package* in *tree*, as written there; None when nothing says it (a source checkout).

    Looks for a constant ``__version__`` or ``version`` at the top level of ``_version.py`` or ``version.py``,
    then for ``Version`` in a ``*.dist-info/METADATA`` beside the package (Core metadata specification).
    TreeError when what is there is not Python, not a version, or names two versions.
    """
    for name in _FILES:
        path = rel_path(f"{package}/{name}")
        if tree.exists(path) and (found := _assigned(text_of(tree, path), f"{path} in {tree.origin}")):
            return _checked(found, f"{path} in {tree.origin}")
    found_in: dict[str, RelPath] = {}
    for path in _metadata_paths(tree, package):
        if found := _header(text_of(tree, path), "version"):
            found_in[_checked(found, f"{path} in {tree.origin}")] = path
    if len(found_in) > 1:
        both = " and ".join(f"{version} ({path})" for version, path in found_in.items())
        raise TreeError(f"{tree.origin}: two versions of {package}: {both}", hint=_HINT)
    return next(iter(found_in), None)


def _assigned(source: str, where: str) -> str | None:
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise TreeError(f"{where}: not Python: {error}", hint=_HINT) from error
    for statement in module.body:
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        named = any(isinstance(target, ast.Name) and target.id in _NAMES for target in targets)
        value = getattr(statement, "value", None)
        if named and isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value.value
    return None


def _metadata_paths(tree: Tree, package: str) -> list[RelPath]:
    wanted = re.compile(re.sub(r"[-_.]+", "[-_.]+", package) + r"-[^/]+\.dist-info/METADATA", re.I)
    names: Iterable[str]
    if isinstance(tree, FolderTree):
        # paths() would walk all of a site-packages folder.
        names = (f"{folder.name}/METADATA" for folder in tree.root.glob("*.dist-info"))
    else:
        names = tree.paths()
    return [path for name in sorted(names) if wanted.fullmatch(name) and tree.exists(path := rel_path(name))]


def _header(text: str, key: str) -> str | None:
    """The first value of a header; the body begins at the first empty line."""
    for line in text.splitlines():
        if not line.strip():
            break
        name, colon, value = line.partition(":")
        if colon and name.strip().lower() == key:
            return value.strip()
    return None


def _checked(version: str, where: str) -> str:
    from packaging.version import InvalidVersion, Version

    try:
        Version(version)
    except InvalidVersion as error:
        raise TreeError(f"{where}: {version!r} is not a version", hint=_HINT) from error
    return version
