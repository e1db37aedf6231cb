"""The bench of the kernels runs, without a device, on sizes that measure nothing; it compares all bytes itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "bench" / "hisparse" / "copy_rows.py"
NO_DEVICE = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}


def bench(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    command = [sys.executable, "-W", "ignore", str(SCRIPT), *options]
    return subprocess.run(
        command, env={**clean, "OMP_NUM_THREADS": "1", **NO_DEVICE, **environment}, capture_output=True, text=True
    )


def peer(path: Path, body: str) -> str:
    """Another kernel's file, as it would lie outside of the repository: ours, with *body* for its class."""
    text = f"from copy_rows import Ours, Tuning\n\nclass Peer(Ours):\n    {body}\n\ndef make(*given):\n"
    path.write_text(text + "    return Peer(*given, Tuning())\n")
    return str(path)


@pytest.fixture(autouse=True)
def _packages() -> None:
    pytest.importorskip("torch", reason="the bench measures on torch tensors (a CPU build is enough)")
    pytest.importorskip("triton", reason="the kernels are Triton (pip install 'graftwork[hisparse]')")


def test_tiny_run_gives_every_line_with_its_pattern_and_range(hisparse_numpy: None, tmp_path: Path) -> None:
    """With another kernel beside ours: here ours again."""
    run = bench(
        "--tiny",
        "--json",
        str(tmp_path / "out.json"),
        "--peer",
        peer(tmp_path / "peer_again.py", "pass"),
        TRITON_INTERPRET="1",
    )
    assert run.returncode == 0, run.stderr[-4_000:]
    made = json.loads((tmp_path / "out.json").read_text())
    assert "mean nothing" in made["facts"]["device"]
    told = {(line["layout"], line["pattern"], line["misses"]): line for line in made["lines"]}
    assert len(told) == 8
    for (_, _, misses), line in told.items():
        assert line["rows_missing"] == (8 if misses else 0)
        assert line["layer_gib"] > 0
        kernels = {"ours", "peer"} | ({"plain", "sorted"} if misses else set())
        assert {name for name, value in line.items() if isinstance(value, dict)} == kernels


def test_wrong_bytes_end_the_bench(hisparse_numpy: None, tmp_path: Path) -> None:
    """A kernel that copies nothing is fast, and is no result."""
    run = bench(
        "--tiny",
        "--peer",
        peer(tmp_path / "peer_idle.py", "step = lambda self, layer: self.index.zero_()"),
        TRITON_INTERPRET="1",
    )
    assert run.returncode != 0
    assert "peer: layer 0 of" in run.stderr


def test_without_a_device_it_says_so() -> None:
    run = bench()
    assert run.returncode != 0
    assert "no device" in run.stderr
