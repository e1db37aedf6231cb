"""Fixtures that several areas share: this checkout's catalog, and a small one made for a test."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from toys import ROOT, Toy

from graftwork.catalog.catalog import Catalog

# The same examples on every run, and no time limit for one: CI must say the same of the same commit, on any machine.
settings.register_profile("graftwork", deadline=None, derandomize=True)
settings.load_profile("graftwork")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Tests that share a service must share a worker: a pytest with which xdist's groups do nothing is refused."""
    grouping = getattr(session.config.option, "loadgroup", False)
    if grouping and any(item.get_closest_marker("xdist_group") and "@" not in item.nodeid for item in session.items):
        raise pytest.UsageError("pytest-xdist does not keep groups together with this pytest; see pyproject.toml")


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path / "toy")


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return Catalog.find(ROOT)
