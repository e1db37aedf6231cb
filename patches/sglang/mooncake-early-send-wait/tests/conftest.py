"""Fixtures: the bench (bench.py) for the tree under test."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.version import Version

from graftwork.harness.isolate import load_module


@pytest.fixture(scope="session")
def kit() -> ModuleType:
    """bench.py. Loaded here, so that a missing torch or NumPy is a skip."""
    for name in ("torch", "numpy"):
        pytest.importorskip(name, reason="the scheduler handles tensors and arrays (a CPU build is enough)")
    return load_module(Path(__file__).with_name("bench.py"), "mooncake_early_send_wait_bench")


@pytest.fixture
def prefill(kit: ModuleType, engine_tree: Path, engine_version: Version) -> Any:
    """A prefill node of the tree under test, anew for each test."""
    return kit.Prefill(engine_tree, engine_version)
