"""The report on the real matrix, in a real browser, which also takes the picture that the README shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from browser import Cells, chromium, colours, dom, picture
from toys import ROOT

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("matrix")]


def test_a_browser_shows_the_real_matrix(tmp_path: Path) -> None:
    """With GRAFTWORK_PICTURE=FILE (make report-picture) the picture is kept there."""
    chromium()
    page = tmp_path / "report.html"
    command = [sys.executable, "-c", "from graftwork.cli.main import run; run()", "report", "--out", str(page)]
    command += ["--as-of", "2026-11-30"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 6:
        pytest.skip(f"the package index is not reachable: {done.stderr}")
    assert done.returncode == 0, done.stderr
    seen = Cells(dom(page))
    whole = 0
    for engine, some in (("sglang", "sglang/hicache-rocm-host-alloc"), ("vllm", "vllm/hisparse")):
        places = {place for place in seen.cells if place[0].startswith(f"{engine}/")}
        patches, releases = {patch for patch, _ in places}, {version for _, version in places}
        assert some in patches and len(releases) >= 13 and len(places) == len(releases) * len(patches)
        whole += len(places)
    assert whole == len(seen.cells)
    assert seen.cells["sglang/dsa-indexer-rows", "0.5.14"] == ("drifted", "✗ drifted")
    assert seen.cells["sglang/dsa-indexer-rows", "0.5.23"] == ("pending", "✓ pending")
    assert seen.cells["sglang/hicache-rocm-host-alloc", "0.5.20"] == ("obsolete", "∎ obsolete")
    assert seen.cells["vllm/hisparse", "0.24.0"] == ("pending", "✓ pending")
    out = Path(os.environ.get("GRAFTWORK_PICTURE", "") or tmp_path / "report.png")
    found = colours(picture(page, ROOT / out, width=1350, height=690))
    assert all(found.get(colour, 0) > 500 for colour in ("#dafbe1", "#ffd8d3", "#fff1c2"))
