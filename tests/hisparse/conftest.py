"""Where the hot KV package is, and which of its tests run in a process of their own.

Triton decides when it is imported whether its kernels are interpreted. So `interpreted/` is collected only where
TRITON_INTERPRET is set, which `test_interpreted.py` does for processes that it starts.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from packaging.version import Version

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "patches" / "vllm" / "hisparse" / "files"
for folder in (PACKAGE, HERE):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

collect_ignore = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["interpreted"]


@pytest.fixture
def hisparse_numpy() -> None:
    """Skips where Triton's interpreter does not work."""
    numpy = pytest.importorskip("numpy")
    if Version(numpy.__version__) >= Version("2.4"):
        pytest.skip("Triton 3.6 interprets with NumPy before 2.4 only (pip install 'graftwork[hisparse]')")
