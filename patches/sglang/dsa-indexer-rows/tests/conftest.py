"""Fixtures: the bench (bench.py) for the tree under test, and the oracle (oracle.py) that judges what it returns."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.version import Version

from graftwork.harness.isolate import load_module


@pytest.fixture(scope="session")
def kit() -> ModuleType:
    """bench.py: `Batch`, `check`, `Bench` and torch. Loaded here, so that a missing torch is a skip."""
    pytest.importorskip("torch", reason="the indexer's behaviour needs torch (a CPU build is enough)")
    return load_module(Path(__file__).with_name("bench.py"), "dsa_indexer_rows_bench")


@pytest.fixture(scope="session")
def bench(kit: ModuleType, engine_tree: Path, engine_version: Version) -> Any:
    return kit.Bench(engine_tree, engine_version)


@pytest.fixture(scope="session")
def optimized_bench(kit: ModuleType, engine_tree: Path, engine_version: Version) -> Any:
    """The same text compiled as ``python -OO`` would: without assert statements."""
    return kit.Bench(engine_tree, engine_version, optimize=2)
