"""Generate the JSON Schemas of patch.toml and target files from the code, or check that they are up to date."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from graftwork.catalog.catalog import Catalog
from graftwork.catalog.patches import MutantFile, PatchFile, RevisionFile
from graftwork.catalog.seen import UpstreamFile
from graftwork.catalog.targets import Lock, Target
from graftwork.catalog.toml import schema_of
from graftwork.launch.recipe import Recipe

ROOT = Path(__file__).resolve().parent.parent
SCHEMAS = {
    "patch": (PatchFile, "graftwork patch.toml"),
    "revision": (RevisionFile, "graftwork earlier revision of a patch"),
    "mutants": (MutantFile, "graftwork mutants of a patch"),
    "target": (Target, "graftwork target"),
    "upstream": (UpstreamFile, "graftwork upstream.json"),
    "lock": (Lock, "graftwork lock"),
    "recipe": (Recipe, "graftwork recipe"),
}


def main() -> int:
    """Write docs/schema/*.json; with --check only compare, and load the whole catalog."""
    stale = []
    for name, (kind, title) in SCHEMAS.items():
        file = ROOT / "docs/schema" / f"{name}.schema.json"
        text = json.dumps(schema_of(kind, title), indent=2, sort_keys=True) + "\n"
        if "--check" not in sys.argv:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8")
        elif not file.is_file() or file.read_text("utf-8") != text:
            stale.append(str(file.relative_to(ROOT)))
    if stale:
        sys.stderr.write(f"not what the code says: {', '.join(stale)}; run: make schemas\n")
        return 1
    Catalog.find(ROOT).check()
    return 0


if __name__ == "__main__":
    sys.exit(main())
