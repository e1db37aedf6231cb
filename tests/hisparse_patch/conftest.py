"""The scripts of bench/hisparse as modules. Their engines run on a GPU only; here is what surrounds them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench/hisparse"
NAMES = ("models", "judging", "sides", "inside", "parity", "engine", "steady")


@pytest.fixture(scope="session")
def bench() -> Iterator[Any]:
    """`bench(name)` imports a module of bench/hisparse."""
    sys.path.insert(0, str(BENCH))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    sys.path[:] = [each for each in sys.path if each != str(BENCH)]
    for name in NAMES:
        sys.modules.pop(name, None)
