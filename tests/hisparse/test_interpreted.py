"""Runs `interpreted/`, the tests that execute the kernels, in processes where Triton interprets them on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as Xml
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = sorted(path.name for path in (HERE / "interpreted").glob("test_*.py"))


@pytest.mark.parametrize("file", FILES)
def test_kernels_interpreted(file: str, hisparse_numpy: None, tmp_path: Path) -> None:
    """Every test of the file ran and passed: one that was skipped there would say nothing."""
    pytest.importorskip("torch", reason="the kernels work on torch tensors (a CPU build is enough)")
    pytest.importorskip("triton", reason="the kernels are Triton (pip install 'graftwork[hisparse]')")
    results = tmp_path / "results.xml"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    quiet = ("-q", "-p", "no:cacheprovider", "-W", "ignore")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *quiet, f"--junitxml={results}", str(HERE / "interpreted" / file)],
        env={**environment, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-6_000:] + run.stderr[-2_000:]
    suite = Xml.parse(results).getroot().find("testsuite")
    assert suite is not None
    assert int(suite.get("tests", 0)) > 0
    assert suite.get("skipped") == "0", run.stdout[-2_000:]
