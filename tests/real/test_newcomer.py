"""CONTRIBUTING as a newcomer follows it: its own commands on a real change of SGLang, to a proved patch in an image."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from real.wheels import wheel

from graftwork.catalog.catalog import Catalog
from graftwork.names import rel_path
from graftwork.patching.report import file_diff

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]
NAME = "sglang/kimi-linear-text-config"
FOLDER = f"patches/{NAME}"
TARGET = "deploy/docker/targets/rocm-gfx942.toml"
CHANGED = "sglang/srt/configs/hybrid_arch.py"


def commands() -> list[str]:
    """Every command of the section, in its order."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    (section,) = re.findall(r"^## From a public change to a proved patch$(.*?)^## ", text, re.M | re.S)
    return re.findall(r"^    (graftwork .*)$", section, re.M)


class Newcomer:
    """A checkout of the catalog, and the command."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("patches", "deploy/docker"):
            shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
        self.environment = {**os.environ, "GIT_AUTHOR_NAME": "N", "GIT_AUTHOR_EMAIL": "n@example.com"}
        self.environment |= {"GIT_COMMITTER_NAME": "N", "GIT_COMMITTER_EMAIL": "n@example.com"}

    def run(self, line: str, code: int = 0) -> str:
        """Run a command as it is written; what it printed."""
        verb = [sys.executable, "-c", "from graftwork.cli.main import run; run()"]
        command = [*verb, *shlex.split(line)[1:]]
        done = subprocess.run(command, cwd=self.root, env=self.environment, capture_output=True, text=True)
        assert done.returncode == code, f"{line}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def edits(self) -> object:
        """What the patch changes and how it is recognised, without the words that a person adds."""
        spec = Catalog(self.root).patch(NAME).spec
        plain = msgspec.to_builtins([spec.edit, spec.marker, spec.versions])
        for edit in plain[0]:
            for hunk in edit["hunk"]:
                hunk["why"] = ""
        return plain


def test_the_steps_of_contributing(tmp_path: Path) -> None:
    newcomer = Newcomer(tmp_path)
    with wheel("0.5.16") as before, wheel("0.5.17") as after:
        old, new = before.read(rel_path(CHANGED)), after.read(rel_path(CHANGED))
    (tmp_path / "change.diff").write_text(file_diff(f"python/{CHANGED}", old, new))
    steps = commands()
    assert [line.split()[1] for line in steps] == [
        "new", "lint", "plan", "plan", "prove", "image", "verify", "matrix", "why", "export"
    ]  # fmt: skip

    newcomer.run(steps[0])
    unfinished = newcomer.run(steps[1], code=8)
    assert "TODO is left" in unfinished and "no [[evidence]]" in unfinished
    made = newcomer.edits()
    for name in ("patch.toml", "README.md", "tests/test_kimi_linear_text_config.py"):
        shutil.copy(ROOT / "docs/example" / name, tmp_path / FOLDER / name)
    assert newcomer.edits() == made, "docs/example is not what graftwork new makes of the change"
    assert "nothing to mend" in newcomer.run(steps[1])

    target = tmp_path / TARGET
    text = target.read_text()
    assert text.count("patches = [\n") == 1
    target.write_text(text.replace("patches = [\n", f'patches = [\n  "{NAME}",\n'))
    assert re.search(rf"{NAME} +pending +R1 +1/1", newcomer.run(steps[2]))
    shown = newcomer.run(steps[3])
    added = [line for line in file_diff(CHANGED, old, new).split("\n") if line.startswith("+    ")]
    assert added and all(line in shown for line in added)
    proved = newcomer.run(steps[4])
    assert "every one noticed" in proved and "patch out" in proved
    newcomer.run(steps[5])
    assert "_graft_kimi_linear_text_config" in newcomer.run(steps[6])
    matrix = newcomer.run(steps[7])
    assert re.search(rf"{NAME} +pending +0\.5\.16 +1/1 +passed on 1", matrix)
    assert re.search(rf"{NAME} +not-needed +0\.5\.17", matrix)
    assert "drop when" in newcomer.run(steps[8])

    newcomer.run(steps[9])
    mail = tmp_path / "kimi.patch"
    clone = checkout(tmp_path / "clone", {f"python/{CHANGED}": old})
    git(clone, "am", "-q", str(mail))
    assert (clone / "python" / CHANGED).read_bytes() == new, "export gives upstream's own change back"


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def checkout(folder: Path, files: dict[str, bytes]) -> Path:
    """A repository that holds *files*."""
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    git(folder, "init", "-q", ".")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "the release")
    return folder
