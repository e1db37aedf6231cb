"""Fixtures: the bench (bench.py) for the tree under test."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from graftwork.harness.isolate import load_module


@pytest.fixture(scope="session")
def kit() -> ModuleType:
    """bench.py. Loaded here, so that a missing torch is a skip."""
    pytest.importorskip("torch", reason="the pools copy torch tensors (a CPU build is enough)")
    return load_module(Path(__file__).with_name("bench.py"), "hicache_staged_write_back_bench")


@pytest.fixture
def cache(kit: ModuleType, engine_tree: Path) -> Any:
    """Makes the engine's pools and controllers for a platform, ``hip`` or ``cuda``."""
    return lambda platform, **given: kit.Cache(engine_tree, platform, **given)
