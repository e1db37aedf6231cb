"""A small catalog and tree, made anew for each test that needs one."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

from packaging.version import Version

from graftwork.catalog.catalog import Catalog, Patch
from graftwork.patching.assess import Engine

ROOT = Path(__file__).resolve().parent.parent

TOY_SOURCE = '''\
import logging

logger = logging.getLogger(__name__)

LIMIT = 10


class Pool:
    """A pool."""

    def take(self, rows, padded):
        # how many rows
        count = rows

        if self.is_small():
            return kernel(
                count,
                padded,
            )
        return kernel(count, padded, wide=True)

    def is_small(self):
        return True


def kernel(count, padded, wide=False):
    return [count, padded, wide]
'''


def head(patch: str, revision: str = "R1", **words: str) -> str:
    """What every patch.toml begins with."""
    said = {"title": "t", "symptom": "s", "why": "w", "drop_when": "d", **words}
    rows = {"id": patch, "revision": revision, **said}
    return "".join(f'{key} = "{value}"\n' for key, value in rows.items())


def codemod(name: str, scope: str, *hunks: dict[str, str]) -> str:
    """An edit of the pool."""
    keys = "".join("\n[[edit.hunk]]\n" + "".join(f'{k} = "{v}"\n' for k, v in hunk.items()) for hunk in hunks)
    return f'\n[[edit]]\nid = "{name}"\nkind = "codemod"\nfile = "toy/pool.py"\nscope = "{scope}"\n{keys}'


def local(function: str, value: str) -> str:
    """A marker: the local *value* in a function of the pool."""
    return f'\n[[marker]]\nfile = "toy/pool.py"\nfunction = "{function}"\nkind = "local"\nvalue = "{value}"\n'


def earlier(note: str) -> str:
    """Behind the last marker, which tells it apart: the revision R1, whose edits are in ``old.toml``."""
    return f'discriminates = ["R1"]\n\n[[earlier]]\nid = "R1"\nedits = "old.toml"\nnote = "{note}"\n'


TAKE = "Pool.take"
TOY_PATCH = head(
    "toy/rows",
    "R2",
    title="Use the smaller count",
    symptom="too many rows",
    why="rows and padded differ",
    drop_when="upstream takes the smaller one",
)
TOY_PATCH += codemod(
    "rows",
    TAKE,
    {"match": "count = rows", "becomes": "count = min(rows, padded)"},
    {"match": "if self.is_small(): ...", "before": "_toy_clip = count < rows"},
)
TOY_PATCH += local(TAKE, "_toy_clip")
OLD = codemod("rows", TAKE, {"match": "count = rows", "before": "_toy_old = 1"}) + local(TAKE, "_toy_old")
WITH_OLD = TOY_PATCH + earlier("half a fix")

TOY_TARGET = """\
name = "t"
summary = "a toy"
engine = "toy"
version = "1.0"
platform = "cpu"
accelerator = "none"
patches = ["toy/rows"]

[base]
image = "example/toy:1.0"
digest = "sha256:{zeros}"
digest_source = "made up for a test"
checked = false
python = "3.10"
interpreter = "/usr/bin/python3"
root = "/opt/toy"

[[wheel]]
file = "toy-1.0-py3-none-any.whl"
python = "py3"
arch = "any"
sha256 = "{zeros}"
size = 1
""".format(zeros="0" * 64)


class Toy:
    """A catalog with one target ``t`` and patch ``toy/rows``, and a tree that holds the package ``toy``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = root / "tree"
        self.pool = self.tree / "toy/pool.py"
        self.engine = Engine(Version("1.0"), "cpu")
        self.write("deploy/docker/targets/t.toml", TOY_TARGET)
        self.patch("rows", TOY_PATCH)
        self.write("tree/toy/__init__.py", "")
        self.write("tree/toy/pool.py", TOY_SOURCE)

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode("utf-8"))
        return file

    def patch(self, name: str, text: str) -> None:
        self.write(f"patches/toy/{name}/patch.toml", textwrap.dedent(text))

    def target(self, change: Callable[[str], str]) -> None:
        file = self.root / "deploy/docker/targets/t.toml"
        file.write_text(change(file.read_text("utf-8")), "utf-8")

    @property
    def catalog(self) -> Catalog:
        return Catalog(self.root)

    @property
    def patches(self) -> list[Patch]:
        return self.catalog.patches(self.catalog.target("t"))
