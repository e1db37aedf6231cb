"""What a patch must say before anybody relies on it, and rules for the texts of a checkout. All problems in one run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from graftwork.catalog import rules
from graftwork.catalog.catalog import Catalog, Patch
from graftwork.catalog.toml import KeyPath, line_of
from graftwork.errors import CatalogError
from graftwork.harness.lint_text import comment_blocks, private_names
from graftwork.harness.skeleton import TODO
from graftwork.patching import orders
from graftwork.patching.assess import Engine
from graftwork.trees.tree import Tree

_CODE = ("src", "scripts", "tests", "bench", "patches", "deploy")  # folders whose comments are looked at
_PUBLIC = ("src", "docs", "deploy", "patches")  # folders that people read, and the pages at the top
_PATH = re.compile(r"^(?:tests|patches|bench|docs|scripts)/[\w./-]+")
_PASSIVE = ("skip", "importorskip", "xfail")


@dataclass(frozen=True, order=True)
class Problem:
    """One thing to mend; *line* is 0 where a file is meant as a whole."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}" if self.line else f"{self.file}: {self.message}"


def lint_patch(catalog: Catalog, name: str) -> list[Problem]:
    """Everything that patch *name* lacks: its patch.toml, README, tests, and the words in its folder."""
    folder = catalog.root / "patches" / name
    found = list(_texts(catalog, folder))
    try:
        patch = catalog.patch(name)
        rules.check_references(patch.spec, folder / "patch.toml")
    except CatalogError as error:
        file = _relative(catalog, error.file)
        message = error.message.removeprefix(f"{error.file}:{error.line}: ").removeprefix(f"{error.file}: ")
        return sorted([*found, Problem(file, error.line or 0, message)])
    found += _said(catalog, patch)
    found += _readme(catalog, patch)
    found += _tests(catalog, patch)
    return sorted(set(found))


def lint_sources(catalog: Catalog) -> list[Problem]:
    """Comments and private names in the checkout around the patches."""
    found: list[Problem] = []
    for folder in dict.fromkeys((*_CODE, *_PUBLIC)):
        if folder == "patches":
            continue
        for file in _files(catalog.root / folder):
            found += _text_rules(catalog, file, comments=folder in _CODE, private=folder in _PUBLIC)
    for file in sorted(catalog.root.glob("*.md")):
        found += _text_rules(catalog, file, comments=False, private=True)
    return sorted(found)


def lint_orders(catalog: Catalog, target: str, tree: Tree, engine: Engine) -> list[Problem]:
    """Where patches of *target* make other bytes in an order that ``after`` allows, or say it needlessly."""
    found = orders.problems(tree, catalog.patches(catalog.target(target)), engine)
    return sorted({_at(catalog, patch, ("after",), f"{message} (target {target})") for patch, message in found})


def _texts(catalog: Catalog, folder: Path) -> Iterator[Problem]:
    for file in _files(folder):
        yield from _text_rules(catalog, file, comments=True, private=True)
        text = _text(file)
        for number, line in enumerate((text or "").split("\n"), 1):
            if re.search(rf"\b{TODO}\b", line):
                yield Problem(_relative(catalog, file), number, f"{TODO} is left: {line.strip()[:80]}")


def _text_rules(catalog: Catalog, file: Path, *, comments: bool, private: bool) -> Iterator[Problem]:
    text = _text(file)
    if text is None:
        return
    if comments and file.suffix not in (".md", ".json", ".txt"):
        yield from (Problem(_relative(catalog, file), *found) for found in comment_blocks(file, text))
    if private:
        yield from (Problem(_relative(catalog, file), *found) for found in private_names(text))


def _said(catalog: Catalog, patch: Patch) -> Iterator[Problem]:
    spec = patch.spec
    for key in ("title", "symptom", "why", "drop_when"):
        if not getattr(spec, key).strip():
            yield _at(catalog, patch, (key,), f"{key} says nothing")
    if not spec.evidence:
        yield _at(catalog, patch, ("id",), "no [[evidence]]: say what is known, and whether measured, read or claimed")
    for position, item in enumerate(spec.evidence):
        named = _PATH.match(item.source) if item.kind == "measured" else None
        if named and not any((root / named[0].rstrip(".")).exists() for root in (catalog.root, patch.folder)):
            yield _at(catalog, patch, ("evidence", position, "source"), f"{named[0]} does not exist")
    for name in spec.after:
        if name not in catalog.patch_ids:
            yield _at(catalog, patch, ("after",), f"comes after {name!r}, which does not exist")


def _readme(catalog: Catalog, patch: Patch) -> Iterator[Problem]:
    file = patch.folder / "README.md"
    text = _text(file)
    if text is None:
        yield Problem(
            _relative(catalog, file), 0, "missing: what is wrong, what is changed, what it costs, what is not known"
        )
    elif text.split("\n", 1)[0] != f"# {patch.id}":
        yield Problem(_relative(catalog, file), 1, f"does not begin with '# {patch.id}'")


def _tests(catalog: Catalog, patch: Patch) -> Iterator[Problem]:
    """A patch has tests, and none that cannot fail."""
    count = 0
    for file in sorted((patch.folder / "tests").glob("test_*.py")):
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError) as error:
            yield Problem(_relative(catalog, file), getattr(error, "lineno", 0) or 0, f"not Python: {error}")
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test"):
                count += 1
                if not _can_fail(node):
                    yield Problem(_relative(catalog, file), node.lineno, f"{node.name} cannot fail")
    if not count:
        yield Problem(_relative(catalog, patch.folder / "tests"), 0, "no test: show the defect on the stock tree")


def _can_fail(function: ast.AST) -> bool:
    """Whether a test asserts, raises, or calls something besides what skips it."""
    for node in ast.walk(function):
        if isinstance(node, (ast.Assert, ast.Raise)):
            return True
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) not in _PASSIVE:
            return True
    return False


def _at(catalog: Catalog, patch: Patch, key: KeyPath, message: str) -> Problem:
    file = patch.folder / "patch.toml"
    return Problem(_relative(catalog, file), line_of(file.read_text("utf-8"), key) or 1, message)


def _files(folder: Path) -> list[Path]:
    """The files below a folder, less what tools leave there."""
    inside = sorted(file for file in folder.rglob("*") if file.is_file())
    return [file for file in inside if not {"__pycache__", "golden"} & set(file.parts) and file.suffix != ".pyc"]


def _text(file: Path) -> str | None:
    try:
        return file.read_bytes().decode("utf-8")
    except (UnicodeDecodeError, FileNotFoundError):
        return None  # a picture, or not there: other rules look at that


def _relative(catalog: Catalog, file: Path) -> str:
    return str(file.relative_to(catalog.root)) if file.is_relative_to(catalog.root) else str(file)


def names_of(catalog: Catalog, wanted: Sequence[str]) -> list[str]:
    """The ids of the patches that *wanted* names; of all if it names none. A broken patch has a name too."""
    return [catalog.patch_id_of(name) for name in wanted] or catalog.patch_ids
