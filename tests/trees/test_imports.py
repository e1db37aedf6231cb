from __future__ import annotations

import subprocess
import sys


def test_heavy_libraries_are_not_imported_before_they_are_used() -> None:
    """'plan --tree' must not pay for the network libraries at start-up."""
    code = (
        "import sys, graftwork.trees.remote, graftwork.trees.folder, graftwork.trees.version\n"
        "heavy = ('requests', 'urllib3', 'remotezip', 'pypi_simple', 'packaging')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
