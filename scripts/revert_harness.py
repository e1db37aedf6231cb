"""Run the revert harness: ``graftwork prove``, with its arguments. For CI systems that call scripts."""

from __future__ import annotations

import sys

from graftwork.cli.main import run

if __name__ == "__main__":
    sys.argv.insert(1, "prove")
    run()
