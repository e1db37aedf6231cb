"""Fixtures: the bench (bench.py) for the tree under test, with a device (device.py)."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.version import Version

from graftwork.harness.isolate import load_module


@pytest.fixture(scope="session")
def kit() -> ModuleType:
    """bench.py: `Bench`, `Mode` and the device. Loaded here, so that a missing torch is a skip."""
    pytest.importorskip("torch", reason="the metadata code needs torch (a CPU build is enough)")
    return load_module(Path(__file__).with_name("bench.py"), "dsa_dp_sync_bench")


@pytest.fixture
def bench(kit: ModuleType, engine_tree: Path, engine_version: Version) -> Any:
    return kit.Bench(engine_tree, engine_version)
