"""What planning remembers: the same answers as without it, and nothing of other text, edits or code."""

from __future__ import annotations

from pathlib import Path

import pytest
from toys import TOY_PATCH, TOY_SOURCE, Toy

from graftwork.patching import codemod, memo
from graftwork.patching.memo import remembering
from graftwork.patching.plan import Plan, plan
from graftwork.trees.cache import Cache, CacheError
from graftwork.trees.folder import FolderTree


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files for which a codemod was examined anew."""
    seen: list[str] = []
    real = codemod.examine
    monkeypatch.setattr(codemod, "examine", lambda edit, text: (seen.append(edit.file), real(edit, text))[1])
    return seen


def anew(toy: Toy) -> Plan:
    return plan(FolderTree(toy.tree), toy.patches, toy.engine)


def planned(toy: Toy, cache: Cache) -> Plan:
    with remembering(cache):
        return anew(toy)


def facts(plan: Plan) -> object:
    return [(item.state, item.hunks, item.reasons, item.markers) for item in plan.patches], plan.changes


def test_the_second_plan_is_the_first_and_parses_nothing(toy: Toy, cache: Cache, asked: list[str]) -> None:
    without = anew(toy)
    first = planned(toy, cache)
    count = len(asked)
    assert count > 0
    second = planned(toy, cache)
    assert len(asked) == count
    assert facts(without) == facts(first) == facts(second)


def test_edits_beside_a_new_file_are_remembered_too(toy: Toy, cache: Cache, asked: list[str]) -> None:
    more = '[[edit]]\nid = "{}"\nkind = "{}"\n'
    anchor = more.format("wide", "anchor") + 'file = "toy/pool.py"\n[[edit.hunk]]\n'
    anchor += 'find = "wide=True"\nreplace = "wide=rows > 1"\n'
    added = more.format("added", "file") + 'path = "toy/more.py"\nsource = "more.py"\n'
    marked = TOY_PATCH.index("[[marker]]")
    toy.patch("rows", f"{TOY_PATCH[:marked]}{added}{anchor}{TOY_PATCH[marked:]}")
    toy.write("patches/toy/rows/more.py", "MORE = 1\n")
    without, first = anew(toy), planned(toy, cache)
    count = len(asked)
    assert facts(planned(toy, cache)) == facts(first) == facts(without) and len(asked) == count
    assert {change.path: change.old is None for change in first.changes} == {"toy/more.py": True, "toy/pool.py": False}
    toy.write("patches/toy/rows/more.py", "MORE = 2\n")
    assert planned(toy, cache).changes[0].new == b"MORE = 2\n"


def test_other_text_is_another_question(toy: Toy, cache: Cache) -> None:
    assert planned(toy, cache).patches[0].state == "pending"
    toy.write("tree/toy/pool.py", TOY_SOURCE.replace("count = rows", "count = rows + 1"))
    assert planned(toy, cache).patches[0].state == "drifted"


def test_other_edits_are_another_question(toy: Toy, cache: Cache) -> None:
    first = planned(toy, cache)
    toy.patch("rows", TOY_PATCH.replace("min(rows, padded)", "max(rows, padded)"))
    second = planned(toy, cache)
    assert first.changes[0].new != second.changes[0].new


def test_other_code_is_another_question(
    toy: Toy, cache: Cache, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(toy, cache)
    count = len(asked)
    monkeypatch.setattr(memo, "_code", lambda: b"another")
    planned(toy, cache)
    assert len(asked) == 2 * count


def test_a_spoiled_answer_is_a_miss_and_is_told(toy: Toy, cache: Cache) -> None:
    first = planned(toy, cache)
    for file in (cache.root / "plans").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert facts(planned(toy, cache)) == facts(first)
    assert cache.warnings and all("spoiled cache entry" in text for text in cache.warnings)


def test_it_can_be_switched_off(toy: Toy, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(memo.SWITCH, "off")
    planned(toy, cache)
    assert not (cache.root / "plans").exists()


def test_a_cache_that_cannot_be_written_is_told(toy: Toy, cache: Cache) -> None:
    cache.root.mkdir()
    (cache.root / "plans").write_text("in the way")
    with pytest.raises(CacheError, match="plans"):
        planned(toy, cache)
