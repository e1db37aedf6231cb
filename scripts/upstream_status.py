"""What CI and people call for the upstream status of the patches: the same as ``graftwork status``."""

from __future__ import annotations

import sys
from pathlib import Path

from graftwork.cli.main import run

if __name__ == "__main__":
    here = ["--catalog", str(Path(__file__).resolve().parent.parent)]
    sys.argv = [sys.argv[0], "status", *here, *sys.argv[1:]]
    run()
