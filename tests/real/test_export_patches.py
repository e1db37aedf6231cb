"""Every patch as a commit for upstream: ``git am`` takes it on a checkout made from the wheel, without a marker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from packaging.version import Version
from real.test_newcomer import ROOT, checkout, git
from real.wheels import NAMES, wheel

from graftwork.catalog.catalog import Catalog, Patch
from graftwork.cli.options import pinned_wheel
from graftwork.errors import UnreachableError
from graftwork.names import rel_path
from graftwork.patching import markers
from graftwork.patching.assess import Engine
from graftwork.patching.check import compile_source, has_marker
from graftwork.patching.plan import plan
from graftwork.patching.states import State
from graftwork.trees.tree import Tree
from graftwork.ui import Screen
from graftwork.upstream.export import export

pytestmark = pytest.mark.real


@pytest.fixture
def _author(monkeypatch: pytest.MonkeyPatch) -> None:
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "E")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "e@example.com")


@contextmanager
def release(patch: Patch) -> Iterator[tuple[Tree, Engine]]:
    """One that the patch applies to: what a target of its pins, else the oldest of the twelve."""
    catalog = Catalog(ROOT)
    for target in map(catalog.target, catalog.target_names):
        if patch.id in target.patches:
            try:
                with pinned_wheel(target, catalog.lock(target), Screen(quiet=True)) as tree:
                    engine = Engine(Version(target.version), target.platform)
                    if plan(tree, [patch], engine).patches[0].state is State.PENDING:
                        yield tree, engine
                        return
            except UnreachableError as error:
                pytest.skip(f"the package index is not reachable: {error}")
    for version in NAMES if patch.id.startswith("sglang/") else ():
        engine = Engine(Version(version), (patch.spec.platforms or ["rocm"])[0])
        with wheel(version) as tree:
            if plan(tree, [patch], engine).patches[0].state is State.PENDING:
                yield tree, engine
                return
    pytest.skip(f"{patch.id} is in no target, and the releases of its engine are not pinned here")


@pytest.mark.usefixtures("_author")
@pytest.mark.parametrize("name", Catalog(ROOT).patch_ids)
def test_git_am_takes_it_and_no_marker_is_left(name: str, tmp_path: Path) -> None:
    patch = Catalog(ROOT).patch(name)
    with release(patch) as (tree, engine):
        commit = export(patch, tree, engine)
        inner = {path: rel_path(path.removeprefix("python/")) for path in commit.paths}
        files = {path: tree.read(name) for path, name in inner.items() if tree.exists(name)}
    clone = checkout(tmp_path / "clone", {"README": b"", **files})
    (tmp_path / "change.patch").write_bytes(commit.mail)
    git(clone, "am", "-q", str(tmp_path / "change.patch"))
    assert git(clone, "log", "-1", "--format=%s").strip() == patch.spec.title
    assert git(clone, "show", "--format=", "--name-only").split() == list(commit.paths)
    in_force = markers.in_force(patch.spec.marker, engine.version)
    new = {name for path, name in inner.items() if path not in files}  # a new file is ours, with all its names
    said = {marker.value for marker in in_force if marker.export == marker.value or marker.file in new}
    assert set(commit.stripped.kept) <= said, "a marker stays in the commit, and its export does not say so"
    for path, name in inner.items():
        if path.endswith(".py"):
            code = compile_source((clone / path).read_bytes(), path)
            left = [marker for marker in in_force if marker.file == name and marker.value not in said]
            assert not [m.value for m in left if has_marker(code, m.function, m.kind, m.value)]
