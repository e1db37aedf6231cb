"""The kernels compile, without a device, for those that they are meant for; in processes that do not interpret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "patches" / "vllm" / "hisparse" / "files"
TARGETS = [
    ("cuda", "90", 32, 656, 227 * 1024),
    ("hip", "gfx942", 64, 656, 64 * 1024),
    ("hip", "gfx950", 64, 1152, 160 * 1024),
]


@pytest.mark.parametrize(("backend", "arch", "wave", "row_bytes", "shared"), TARGETS)
def test_kernels_compile(backend: str, arch: str, wave: int, row_bytes: int, shared: int, tmp_path: Path) -> None:
    """Into a binary for the device, with its wave and shared memory; rows are copied 16 bytes at a time."""
    pytest.importorskip("torch", reason="the package needs torch (a CPU build is enough)")
    pytest.importorskip("triton", reason="the kernels are Triton (pip install 'graftwork[hisparse]')")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TRITON_"))}
    run = subprocess.run(
        [sys.executable, str(HERE / "compiling.py"), backend, arch, str(wave), str(row_bytes)],
        env={**environment, "PYTHONPATH": str(PACKAGE), "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-4_000:]
    made = {line["kernel"]: line for line in map(json.loads, run.stdout.splitlines())}
    assert len(made) == 4
    assert all(line["elf"] for line in made.values())
    assert max(line["shared"] for line in made.values()) <= shared
    assert made["resolve_kernel"]["threads"] == 256
    assert made["copy_kernel"]["wide_loads"] > 0
