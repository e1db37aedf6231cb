"""refresh, rebase and new on the real patches and releases."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version
from real.test_newcomer import Newcomer
from real.wheels import wheel

from graftwork.catalog.catalog import Catalog
from graftwork.names import rel_path
from graftwork.patching.assess import Engine, assess
from graftwork.patching.overlay import Overlay
from graftwork.patching.report import file_diff
from graftwork.patching.states import State
from graftwork.trees.folder import FolderTree

pytestmark = pytest.mark.real
INDEXER = "sglang/srt/layers/attention/dsa/dsa_indexer.py"
ROWS = "patches/sglang/dsa-indexer-rows/patch.toml"
# Small changes of 0.5.17: an import and a call, a new argument, a removed keyword, a docstring, a class attribute.
CHANGED = [
    "sglang/srt/function_call/pythonic_detector.py",
    "sglang/srt/managers/detokenizer_manager.py",
    "sglang/srt/disaggregation/kv_events.py",
    "sglang/lang/ir.py",
    "sglang/srt/observability/ray_wrappers.py",
]


def test_a_real_tree_edited_by_hand_becomes_a_new_revision(tmp_path: Path) -> None:
    newcomer, tree = Newcomer(tmp_path / "catalog"), tmp_path / "tree"
    with wheel("0.5.16") as stock:
        for path in ("sglang/_version.py", INDEXER):
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(stock.read(rel_path(path)))
    patch = Catalog(newcomer.root).patch("sglang/dsa-indexer-rows")
    engine = Engine(Version("0.5.16"), "rocm")
    item = assess(patch, Overlay(FolderTree(tree)), engine)
    assert item.after is not None
    patched = (item.after.bytes_of(INDEXER) or b"").decode()
    old, new = "_p1v2_aiter and _p1v2_rows < q_offset", "_p1v2_aiter and q_offset > _p1v2_rows"
    assert patched.count(old) == 1
    (tree / INDEXER).write_text(patched.replace(old, new))
    shown = newcomer.run(f"graftwork refresh dsa-indexer-rows --tree {tree} --target rocm-gfx942 --write")
    assert "P1V3 -> P1V4" in shown and "-_p1v2_clip = _p1v2_aiter" in shown
    fresh = Catalog(newcomer.root).patch("sglang/dsa-indexer-rows")
    assert fresh.spec.edit[1:] == patch.spec.edit[1:]
    hunks, before = fresh.spec.edit[0].hunk, patch.spec.edit[0].hunk  # type: ignore[union-attr]
    assert hunks[1:] == before[1:] and hunks[0].why == before[0].why  # only the hunk that was edited is another one
    (tree / INDEXER).write_text(patched)
    found = assess(fresh, Overlay(FolderTree(tree)), engine)
    assert found.state is State.OUTDATED and found.upgradable


def test_a_real_conflict_is_marked_and_nothing_is_written(tmp_path: Path) -> None:
    newcomer = Newcomer(tmp_path)
    before = (tmp_path / ROWS).read_bytes()
    shown = newcomer.run("graftwork rebase dsa-indexer-rows --to 0.5.14 --from 0.5.16 --write", code=3)
    assert f"{INDEXER}:" in shown and "<<<<<<< 0.5.16 with the patch" in shown and ">>>>>>> 0.5.14" in shown
    assert (tmp_path / ROWS).read_bytes() == before
    same = newcomer.run("graftwork rebase dsa-indexer-rows --to 0.5.23 --from 0.5.16 --write")
    assert "it applies as it is" in same and (tmp_path / ROWS).read_bytes() == before


@pytest.mark.parametrize("path", CHANGED)
def test_a_real_change_becomes_a_patch_that_plans_to_it(path: str, tmp_path: Path) -> None:
    newcomer = Newcomer(tmp_path / "catalog")
    with wheel("0.5.16") as one, wheel("0.5.17") as other:
        old, new = one.read(rel_path(path)), other.read(rel_path(path))
    (tmp_path / "tree" / path).parent.mkdir(parents=True)
    (tmp_path / "tree" / path).write_bytes(old)
    (newcomer.root / "change.diff").write_text(file_diff(f"python/{path}", old, new))
    newcomer.run(
        f"graftwork new sglang/made --from-diff change.diff --tree {tmp_path / 'tree'} --engine-version 0.5.16"
    )
    patch = Catalog(newcomer.root).patch("sglang/made")
    item = assess(patch, Overlay(FolderTree(tmp_path / "tree")), Engine(Version("0.5.16"), "rocm"))
    assert item.state is State.PENDING and item.after is not None
    made = (item.after.bytes_of(path) or b"").decode()
    assert [line for line in made.split("\n") if "_graft_made = True" not in line] == new.decode().split("\n")
    assert all(edit.scope for edit in patch.spec.edit if path.endswith("manager.py"))  # type: ignore[union-attr]
