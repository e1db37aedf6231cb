"""A catalog whose target runs Debian's Python, a stand-in base for it, and graftwork as a command, for graft tests."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests
from services import Registry
from toys import ROOT

TARGET = "rocm-gfx950"
ROOT_FOLDER = "sgl-workspace/sglang/python"
INDEXER = f"{ROOT_FOLDER}/sglang/srt/layers/attention/dsa/dsa_indexer.py"
POOL = f"{ROOT_FOLDER}/sglang/srt/mem_cache/pool_host/common.py"
RECORD = f"usr/share/graftwork/{TARGET}.json"
CHECK = "usr/share/graftwork/check.py"
GRAFTWORK = str(Path(sys.executable).parent / "graftwork")
ACCEPT = ", ".join(
    [
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    ]
)


@dataclass(frozen=True)
class Done:
    """A finished command: *document* is what it printed with --json."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


@dataclass(frozen=True)
class Workshop:
    """A catalog (*root*) and a cache of its own for index files of bases; wheels come from the machine's cache."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)

    def command(self, *arguments: str | Path) -> list[str]:
        verb, *rest = map(str, arguments)
        return [GRAFTWORK, verb, "--catalog", str(self.root), *rest]

    def run(self, *arguments: str | Path, **environment: str) -> Done:
        """``graftwork VERB --catalog ...``; a traceback fails the test."""
        env = {**os.environ, **self.environment, **environment}
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, env=env, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    def ok(self, *arguments: str | Path, **environment: str) -> dict[str, Any]:
        """Run with --json; exit code 0 is expected. The document, with what was said on stderr as 'said'."""
        done = self.run(*arguments, "--json", **environment)
        assert done.code == 0, done.err
        return {**done.document, "said": done.err}


def retarget(root: Path, python: str, **base: str) -> None:
    """Copy the catalog to *root* with the target's base changed, and make its lock with the real command."""
    shutil.copytree(ROOT / "patches", root / "patches")
    shutil.copytree(ROOT / "deploy/docker", root / "deploy/docker")
    file = root / f"deploy/docker/targets/{TARGET}.toml"
    text = file.read_text("utf-8")
    tag = "cp" + python.replace(".", "")
    if f'python = "{tag}"' not in text:
        release = json.loads((ROOT / "tests/real/releases.json").read_bytes())["0.5.15.post1"]
        name = f"sglang-0.5.15.post1-{tag}-{tag}-manylinux_2_34_x86_64.whl"
        pin = f'[[wheel]]\nfile = "{name}"\npython = "{tag}"\narch = "x86_64"\nsha256 = "{release["wheel"]}"\nsize = 1\n'
        text = re.sub(r"\[\[wheel\]\].*?(?=\n\[\[launch)", pin, text, flags=re.DOTALL)
    for key, value in {"python": python, **base}.items():
        text = re.sub(rf'(?m)^(?<!cp){key} = "(?!cp)[^"]*"', f'{key} = "{value}"', text, count=1)
    file.write_text(text, "utf-8")
