"""Pytest plugin for the tests of patches: which tree they judge, and which release it is.

``GRAFTWORK_TREE=DIR pytest -p graftwork.harness.plugin patches/<engine>/<name>/tests``, or ``--engine-tree DIR``.
The engine's package is that of the patch's folder unless ``--engine`` says otherwise.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from packaging.version import InvalidVersion, Version

from graftwork.errors import TreeError
from graftwork.trees.folder import FolderTree, open_folder
from graftwork.trees.version import engine_version as version_in

_HOW = (
    "set GRAFTWORK_TREE to a folder that holds the engine's package and run "
    "'GRAFTWORK_TREE=DIR pytest -p graftwork.harness.plugin patches/<engine>/<name>/tests'"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--engine-tree", metavar="DIR", help="the tree to judge (or GRAFTWORK_TREE)")
    parser.addoption("--engine", metavar="PACKAGE", help="the engine's package in that tree")


def engine_of(pytestconfig: pytest.Config) -> str:
    """``--engine``, or what follows ``patches`` in the path of the first tests; UsageError where neither says it."""
    named = pytestconfig.getoption("--engine")
    if isinstance(named, str):
        return named
    for argument in pytestconfig.args:
        parts = Path(argument.partition("::")[0]).resolve().parts
        if "patches" in parts[:-1]:
            return parts[parts.index("patches") + 1]
    raise pytest.UsageError("no test stands below patches/<engine>/: say --engine PACKAGE")


@pytest.fixture(scope="session")
def engine_tree(pytestconfig: pytest.Config) -> Path:
    """The folder that holds the engine: ``--engine-tree`` or the variable GRAFTWORK_TREE, or ``python/`` below it."""
    package = engine_of(pytestconfig)
    named = pytestconfig.getoption("--engine-tree") or os.environ.get("GRAFTWORK_TREE")
    if not named:
        pytest.skip(f"no tree to judge: {_HOW}")
    try:
        return open_folder(Path(named), package).root
    except TreeError as error:
        raise pytest.UsageError(f"{named}: no {package}/ in it ({error.message}); {_HOW}") from error


@pytest.fixture(scope="session")
def engine_version(engine_tree: Path, pytestconfig: pytest.Config) -> Version:
    """The release of the tree, from GRAFTWORK_VERSION or as the tree says it (read, never imported)."""
    named, source = os.environ.get("GRAFTWORK_VERSION"), "GRAFTWORK_VERSION"
    if not named:
        try:
            named, source = version_in(FolderTree(engine_tree), engine_of(pytestconfig)), str(engine_tree)
        except TreeError as error:
            raise pytest.UsageError(error.message) from error
    if not named:
        raise pytest.UsageError(f"{source}: no version found; set GRAFTWORK_VERSION to the release, such as 0.5.16")
    try:
        return Version(named)
    except InvalidVersion as error:
        raise pytest.UsageError(f"{source}: {named!r} is not a version; set GRAFTWORK_VERSION") from error
