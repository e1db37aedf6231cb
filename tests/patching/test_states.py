"""All seven states on small trees, each with what a stranger needs to read, and composition in a target's order."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version
from toys import OLD, TOY_PATCH, TOY_SOURCE, WITH_OLD, Toy

from graftwork.errors import ObsoleteError, ProofError, StateError, TreeError
from graftwork.names import RelPath
from graftwork.patching import codemod
from graftwork.patching.assess import Engine, planned_files
from graftwork.patching.plan import Plan, plan
from graftwork.patching.states import State
from graftwork.trees.folder import FolderTree, open_folder


def planned(toy: Toy, **engine: str) -> Plan:
    return plan(
        open_folder(toy.tree, "toy"),
        toy.patches,
        Engine(Version(engine.get("version", "1.0")), engine.get("platform", "cpu")),
        toy.catalog.target("t").optional,
    )


def state(toy: Toy, **engine: str) -> State:
    return planned(toy, **engine).patches[0].state


def apply(toy: Toy) -> str:
    text = codemod.forward(toy.patches[0].spec.edit[0], toy.pool.read_text())
    toy.pool.write_text(text)
    return text


def test_pending_then_applied(toy: Toy) -> None:
    first = planned(toy)
    assert first.refusal() is None
    assert [(c.path, c.patches) for c in first.changes] == [("toy/pool.py", ("toy/rows",))]
    assert state(toy) is State.PENDING
    assert toy.pool.read_text() == TOY_SOURCE, "planning writes nothing"
    assert apply(toy).encode() == first.changes[0].new
    assert state(toy) is State.APPLIED
    assert planned(toy).changes == ()


def test_applied_is_recognised_behind_a_formatter_and_its_layout_is_kept(toy: Toy) -> None:
    text = apply(toy).replace(
        "count = min(rows, padded)", "count = min(\n            rows, padded\n        )  # wrapped"
    )
    toy.pool.write_text(text)
    assert state(toy) is State.APPLIED
    assert planned(toy).changes == ()


def test_partial_when_a_result_is_deleted(toy: Toy) -> None:
    toy.pool.write_text(apply(toy).replace("count = min(rows, padded)", "count = rows"))
    found = planned(toy)
    assert found.patches[0].state is State.PARTIAL
    assert "in the tree: rows[2]" in found.patches[0].reasons
    assert "not in the tree: rows[1]" in found.patches[0].reasons
    assert isinstance(found.refusal(), StateError) and found.changes == ()


def test_partial_when_the_markers_stand_in_dead_code(toy: Toy) -> None:
    toy.pool.write_text(
        TOY_SOURCE.replace("        # how many", "        if 0 > rows: _toy_clip = 1\n        # how many")
    )
    found = planned(toy)
    assert found.patches[0].state is State.PARTIAL
    assert any("the logic is not the patch's" in reason for reason in found.patches[0].reasons)


def test_drifted_when_an_anchored_line_changes(toy: Toy) -> None:
    toy.pool.write_text(TOY_SOURCE.replace("count = rows", "count = rows - 1"))
    found = planned(toy)
    assert found.patches[0].state is State.DRIFTED
    (reason,) = found.patches[0].reasons
    assert "rows[1] toy/pool.py: anchor not found: count = rows" in reason
    assert "nearest candidate, toy/pool.py:13: count = rows - 1" in reason


def test_drifted_when_an_anchor_is_there_twice(toy: Toy) -> None:
    toy.pool.write_text(TOY_SOURCE.replace("        count = rows\n", "        count = rows\n        count = rows\n"))
    (reason,) = planned(toy).patches[0].reasons
    assert "anchor is ambiguous" in reason and "matches 2 times in toy/pool.py (line 13, 14)" in reason


def test_drifted_when_the_file_or_the_function_is_gone(toy: Toy) -> None:
    toy.pool.write_text(TOY_SOURCE.replace("def take(", "def take_all("))
    assert "Pool.take is not defined in toy/pool.py; nearest: Pool.take_all" in planned(toy).patches[0].reasons[0]
    toy.pool.unlink()
    assert "the file does not exist" in planned(toy).patches[0].reasons[0]


def test_a_version_that_the_patch_was_not_written_for(toy: Toy) -> None:
    toy.patch("rows", TOY_PATCH.replace("title =", 'versions = ">=2"\ntitle ='))
    found = planned(toy)
    assert found.patches[0].state is State.DRIFTED
    assert found.patches[0].reasons[0] == "written and tested for >=2, this is 1.0"
    toy.patch("rows", TOY_PATCH.replace('scope = "Pool.take"', 'scope = "Pool.take"\nversions = ">=2"'))
    assert planned(toy).patches[0].reasons == ("no edit of this patch is written for 1.0",)


def test_obsolete_by_what_the_tree_defines(toy: Toy) -> None:
    rule = '\n[[obsolete_when]]\nfile = "toy/pool.py"\nreason = "fixed by #1"\ndefines = "clip_rows"\n'
    toy.patch("rows", TOY_PATCH + rule)
    assert state(toy) is State.PENDING
    toy.pool.write_text(TOY_SOURCE + "\n\nif True:\n    def clip_rows(): ...\n")
    found = planned(toy)
    assert found.patches[0].state is State.OBSOLETE
    assert isinstance(found.refusal(), ObsoleteError)
    toy.target(lambda text: text.replace("patches =", 'optional = ["toy/rows"]\npatches ='))
    assert planned(toy).refusal() is None
    assert planned(toy).changes == ()


def test_obsolete_by_a_pattern_not_by_a_word_in_a_comment(toy: Toy) -> None:
    rule = '\n[[obsolete_when]]\nfile = "toy/pool.py"\nreason = "r"\nscope = "Pool.take"\ncontains = "min(rows, ...)"\n'
    toy.patch("rows", TOY_PATCH + rule)
    toy.pool.write_text(TOY_SOURCE.replace("# how many rows", "# min(rows, padded)"))
    assert state(toy) is State.PENDING
    toy.pool.write_text(TOY_SOURCE.replace("count = rows", "count = min(rows, 3)"))
    assert state(toy) is State.OBSOLETE


def test_obsolete_only_if_every_end_of_the_fix_is_there(toy: Toy) -> None:
    rule = '\n[[obsolete_when]]\nfile = "toy/pool.py"\nreason = "r"\ndefines = "clip_rows"\n'
    rule += '[[obsolete_when.also]]\nfile = "toy/user.py"\nscope = "use"\ncontains = "clip_rows(...)"\n'
    toy.patch("rows", TOY_PATCH + rule)
    toy.pool.write_text(TOY_SOURCE + "\n\ndef clip_rows(): ...\n")
    assert state(toy) is State.PENDING
    toy.write("tree/toy/user.py", "def use():\n    return 0\n\n\ndef other():\n    clip_rows(1)\n")
    assert state(toy) is State.PENDING
    toy.write("tree/toy/user.py", "def use():\n    return clip_rows(1)\n")
    found = planned(toy).patches[0]
    assert found.state is State.OBSOLETE
    assert found.reasons == ("r (toy/pool.py defines clip_rows; toy/user.py contains clip_rows(...))",)


def test_planning_reads_no_file_that_it_does_not_name(toy: Toy) -> None:
    rule = '\n[[obsolete_when]]\nfile = "toy/one.py"\nreason = "r"\ndefines = "f"\n'
    rule += '[[obsolete_when.also]]\nfile = "toy/two.py"\ndefines = "f"\n'
    toy.patch("rows", WITH_OLD + rule)
    toy.write("patches/toy/rows/old.toml", OLD)
    toy.write("tree/toy/one.py", "def f(): ...\n")
    asked: set[str] = set()

    class Watched(FolderTree):
        def read(self, path: RelPath) -> bytes:
            asked.add(path)
            return super().read(path)

        def exists(self, path: RelPath) -> bool:
            asked.add(path)
            return super().exists(path)

    plan(Watched(toy.tree), toy.patches, toy.engine)
    assert {"toy/pool.py", "toy/one.py", "toy/two.py"} <= asked
    assert asked <= planned_files(toy.patches[0], toy.engine)


def test_not_needed_by_version_or_platform(toy: Toy) -> None:
    toy.patch("rows", TOY_PATCH + '\n[[not_needed]]\nversions = "<1.1"\nreason = "came later"\n')
    found = planned(toy)
    assert (found.patches[0].state, found.patches[0].reasons) == (State.NOT_NEEDED, ("came later",))
    assert found.refusal() is None and found.changes == ()
    assert state(toy, version="1.1") is State.PENDING
    toy.patch("rows", TOY_PATCH.replace("title =", 'platforms = ["rocm"]\ntitle ='))
    assert state(toy) is State.NOT_NEEDED
    assert state(toy, platform="rocm") is State.PENDING


def test_outdated_by_text_and_by_markers_only(toy: Toy) -> None:
    toy.write("patches/toy/rows/old.toml", OLD)
    toy.patch("rows", WITH_OLD)
    toy.pool.write_text(TOY_SOURCE.replace("        count = rows", "        _toy_old = 1\n        count = rows"))
    found = planned(toy).patches[0]
    assert (found.state, found.upgradable) == (State.OUTDATED, True)
    assert found.reasons == ("revision R1 is in the tree, this is R2", "half a fix")
    assert "--upgrade" in planned(toy).refusal().hint  # type: ignore[union-attr]
    toy.pool.write_text(TOY_SOURCE.replace("        count = rows", "        _toy_old = 2\n        count = rows + 0"))
    found = planned(toy).patches[0]
    assert (found.state, found.upgradable) == (State.OUTDATED, False)


def test_a_marker_that_the_edit_does_not_bring_fails_the_proof(toy: Toy) -> None:
    toy.patch("rows", TOY_PATCH.replace('value = "_toy_clip"', 'value = "_toy_other"'))
    found = planned(toy)
    assert isinstance(found.refusal(), ProofError)
    assert "marker local '_toy_other' is not in Pool.take" in found.patches[0].problems[0]


def test_a_marker_of_the_pristine_file_is_no_marker(toy: Toy) -> None:
    toy.patch("rows", TOY_PATCH.replace('value = "_toy_clip"', 'value = "count"'))
    assert state(toy) is State.PARTIAL


OTHER = (
    TOY_PATCH.replace("toy/rows", "toy/other")
    .replace(
        'match = "count = rows"\nbecomes = "count = min(rows, padded)"',
        'match = "_toy_clip = count < rows"\nbecomes = "_toy_clip = count <= rows"',
    )
    .replace(
        'match = "if self.is_small(): ..."\nbefore = "_toy_clip = count < rows"',
        'match = "return kernel(count, padded, wide=True)"\nbefore = "_toy_second = 1"',
    )
    .replace('value = "_toy_clip"', 'value = "_toy_second"')
)


def two(toy: Toy, other: str = OTHER) -> None:
    toy.patch("other", other)
    toy.target(lambda text: text.replace('["toy/rows"]', '["toy/rows", "toy/other"]'))


def test_a_patch_on_top_of_another_is_seen_through(toy: Toy) -> None:
    two(toy)
    found = planned(toy)
    assert [item.state for item in found.patches] == [State.PENDING, State.PENDING]
    assert found.changes[0].patches == ("toy/rows", "toy/other")
    toy.pool.write_bytes(found.changes[0].new or b"")
    again = planned(toy)
    assert [item.state for item in again.patches] == [State.APPLIED, State.APPLIED]
    assert again.changes == () and again.patched[0].pristine == TOY_SOURCE.encode()


def test_one_applied_one_pending(toy: Toy) -> None:
    apply(toy)
    two(toy)
    found = planned(toy)
    assert [item.state for item in found.patches] == [State.APPLIED, State.PENDING]
    assert found.refusal() is None and found.patched[0].pristine == TOY_SOURCE.encode()


def test_a_conflict_names_both(toy: Toy) -> None:
    clash = OTHER.replace("_toy_clip = count < rows", "count = rows").replace("_toy_clip = count <= rows", "count = 0")
    two(toy, clash)
    found = planned(toy)
    assert found.patches[1].state is State.DRIFTED
    assert found.patches[1].reasons[0] == ("conflict: toy/other and toy/rows edit the same place; toy/rows comes first")


def test_all_failures_are_in_one_report(toy: Toy) -> None:
    two(toy, OTHER.replace("return kernel(count, padded, wide=True)", "return kernel(nothing)"))
    toy.pool.write_text(TOY_SOURCE.replace("count = rows", "count = 1"))
    refusal = planned(toy).refusal()
    assert refusal and "toy/rows is drifted" in refusal.message and "toy/other is drifted" in refusal.message


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xef\xbb\xbfa = 1\n", "byte order mark"),
        (b"a = '\xff'\n", "not UTF-8"),
        (b"a = 1\0\n", "NUL"),
        (b"def f(:\n", "not Python source"),
    ],
)
def test_source_that_cannot_be_edited(toy: Toy, data: bytes, says: str) -> None:
    toy.pool.write_bytes(data)
    with pytest.raises(TreeError, match=says):
        planned(toy)


def test_crlf_and_odd_bytes_survive(toy: Toy) -> None:
    toy.pool.write_bytes(TOY_SOURCE.replace("\n", "\r\n").replace("A pool.", "Ein Pöööl \x0c.").encode())
    found = planned(toy)
    new = found.changes[0].new or b""
    assert found.refusal() is None
    assert new.count(b"\n") == new.count(b"\r\n") and "Pöööl \x0c".encode() in new


def test_the_plan_of_a_symlinked_file(toy: Toy, tmp_path: Path) -> None:
    outside = tmp_path / "outside.py"
    outside.write_text(TOY_SOURCE)
    toy.pool.unlink()
    toy.pool.symlink_to(outside)
    with pytest.raises(TreeError, match="outside"):
        planned(toy)


def test_a_lone_patch_that_does_not_fit_is_looked_at_once(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    import graftwork.patching.plan as planning

    toy.pool.write_text(TOY_SOURCE.replace("count = rows", "count = rows - 1"))
    looked, assess = [], planning.assess
    monkeypatch.setattr(planning, "assess", lambda *args: (looked.append(args), assess(*args))[1])
    assert state(toy) is State.DRIFTED
    assert len(looked) == 1
