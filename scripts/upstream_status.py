"""What CI and people call for the upstream status of the patches: the same as ``graftwork status``."""

from __future__ import annotations

import sys
from pathlib import Path

from graftwork.cli.main import run

if __name__ == "__main__":
    arguments = sys.argv[1:]
    if "--catalog" not in arguments:
        arguments = ["--catalog", str(Path(__file__).resolve().parent.parent), *arguments]
    sys.argv = [sys.argv[0], "status", *arguments]
    run()
