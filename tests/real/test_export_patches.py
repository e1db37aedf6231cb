"""Every patch as a commit for upstream: ``git am`` takes it on a checkout made from the wheel, without a marker."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version
from real.test_newcomer import ROOT, checkout, git
from real.wheels import NAMES, wheel

from graftwork.catalog.catalog import Catalog, Patch
from graftwork.names import rel_path
from graftwork.patching import markers
from graftwork.patching.assess import Engine
from graftwork.patching.check import compile_source, has_marker
from graftwork.patching.plan import plan
from graftwork.patching.states import State
from graftwork.upstream.export import export

pytestmark = pytest.mark.real


@pytest.fixture
def _author(monkeypatch: pytest.MonkeyPatch) -> None:
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "E")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "e@example.com")


def releases(patch: Patch) -> list[str]:
    """Where to look for a release that the patch applies to: those of its targets first."""
    catalog = Catalog(ROOT)
    targets = map(catalog.target, catalog.target_names)
    return list(dict.fromkeys([target.version for target in targets if patch.id in target.patches] + NAMES[3:]))


@pytest.mark.usefixtures("_author")
@pytest.mark.parametrize("name", Catalog(ROOT).patch_ids)
def test_git_am_takes_it_and_no_marker_is_left(name: str, tmp_path: Path) -> None:
    patch = Catalog(ROOT).patch(name)
    for version in releases(patch):
        engine = Engine(Version(version), (patch.spec.platforms or ["rocm"])[0])
        with wheel(version) as tree:
            if plan(tree, [patch], engine).patches[0].state is not State.PENDING:
                continue
            commit = export(patch, tree, engine)
            paths = [path.removeprefix("python/") for path in commit.paths]
            files = {path: tree.read(rel_path(path)) for path in paths if tree.exists(rel_path(path))}
        break
    else:
        pytest.fail(f"{name} applies to none of {', '.join(NAMES)}")
    clone = checkout(tmp_path / "clone", files)
    (tmp_path / "change.patch").write_bytes(commit.mail)
    git(clone, "am", "-q", str(tmp_path / "change.patch"))
    assert git(clone, "log", "-1", "--format=%s").strip() == patch.spec.title
    assert git(clone, "show", "--format=", "--name-only").split() == list(commit.paths)
    in_force = markers.in_force(patch.spec.marker, engine.version)
    said = {marker.value for marker in in_force if marker.export == marker.value}
    assert set(commit.stripped.kept) <= said, "a marker stays in the commit, and its export does not say so"
    for path in paths:
        code = compile_source((clone / "python" / path).read_bytes(), path)
        left = [marker for marker in in_force if marker.file == path and marker.value not in said]
        assert not [m.value for m in left if has_marker(code, m.function, m.kind, m.value)]
