"""Pytest plugin for the tests of patches: which tree they judge, and which release it is.

``GRAFTWORK_TREE=DIR pytest -p graftwork.harness.plugin patches/<engine>/<name>/tests``, or ``--engine-tree DIR``.
The engine's package is that of the patch's folder unless ``--engine`` says otherwise.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest
from packaging.version import InvalidVersion, Version

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
    for folder in (Path(named), Path(named) / "python"):
        if (folder / package).is_dir():
            return folder.resolve()
    raise pytest.UsageError(f"{named}: no {package}/ in it; {_HOW}")


@pytest.fixture(scope="session")
def engine_version(engine_tree: Path, pytestconfig: pytest.Config) -> Version:
    """The release of the tree, from GRAFTWORK_VERSION or the engine's ``_version.py`` (read, never imported)."""
    named = os.environ.get("GRAFTWORK_VERSION")
    source = "GRAFTWORK_VERSION"
    if not named:
        file = engine_tree / engine_of(pytestconfig) / "_version.py"
        source = str(file)
        named = _assigned_version(file) if file.is_file() else None
    if not named:
        raise pytest.UsageError(f"{source}: no version found; set GRAFTWORK_VERSION to the release, such as 0.5.16")
    try:
        return Version(named)
    except InvalidVersion as error:
        raise pytest.UsageError(f"{source}: {named!r} is not a version; set GRAFTWORK_VERSION") from error


def _assigned_version(file: Path) -> str | None:
    for node in ast.parse(file.read_bytes(), str(file)).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        names = {target.id for target in targets if isinstance(target, ast.Name)}
        if names & {"version", "__version__"} and isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value.value
    return None
