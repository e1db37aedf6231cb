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


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path / "toy")


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return Catalog.find(ROOT)
