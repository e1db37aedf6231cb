"""Fixtures that several areas share: this checkout's catalog, and a small one made for a test."""

from __future__ import annotations

from pathlib import Path

import pytest
from toys import ROOT, Toy

from graftwork.catalog.catalog import Catalog


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path / "toy")


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return Catalog.find(ROOT)
