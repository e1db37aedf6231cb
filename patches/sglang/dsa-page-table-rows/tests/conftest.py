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
    pytest.importorskip("torch", reason="the lookup's behaviour needs torch (a CPU build is enough)")
    return load_module(Path(__file__).with_name("bench.py"), "dsa_page_table_rows_bench")


@pytest.fixture(scope="session")
def bench(kit: ModuleType, engine_tree: Path) -> Any:
    return kit.Bench(engine_tree)
