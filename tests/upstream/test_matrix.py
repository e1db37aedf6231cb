"""The matrix on toy releases: states, what moved, bytes, the cache, and what happens when a release cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace as replaced
from upstream.toy_releases import SOURCES, STATES, ToyIndex, toy_catalog, toy_index, wheel

from graftwork.catalog.catalog import Catalog
from graftwork.errors import GraftworkError, PinError, UnreachableError, UsageError
from graftwork.patching import codemod
from graftwork.trees.cache import Cache
from graftwork.ui import Screen
from graftwork.upstream.matrix import Matrix, Question, make_matrix
from graftwork.upstream.matrix_cells import Cell, as_dict, load_cells
from graftwork.upstream.matrix_text import show
from graftwork.upstream.releases import FirstUse, find_releases, in_range


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return toy_catalog(tmp_path_factory.mktemp("matrix") / "toy").catalog


def make(
    toy: Catalog, index: ToyIndex, cache: Cache, *, spec: str = ">=0.7,<2.0.dev0", offline: bool = False
) -> Matrix:
    client, _ = index.client(cache, offline=offline)
    patches = tuple(toy.patch(name) for name in toy.patch_ids)
    releases = find_releases(client, "toy", {}, FirstUse(cache), in_range(spec, patches))
    return make_matrix(Question(patches, toy.platforms_of(patches), tuple(releases)), cache, client, jobs=1)


@pytest.fixture(scope="module")
def cells(toy: Catalog, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cell]:
    with toy_index() as index:
        made = make(toy, index, Cache(tmp_path_factory.mktemp("cells") / "cache"))
    return {cell.version: cell for cell in made.cells}


def test_states(cells: dict[str, Cell]) -> None:
    assert {version: cell.state for version, cell in cells.items()} == STATES


def test_obsolete_comes_from_the_precondition_although_the_anchor_matches(cells: dict[str, Cell]) -> None:
    assert SOURCES["1.3"].startswith(SOURCES["1.0"])
    assert "defines smaller_of" in cells["1.3"].reasons[0]
    assert cells["1.3"].edits == []


def test_a_file_that_is_not_python_is_drift_with_its_reason(cells: dict[str, Cell]) -> None:
    (reason,) = cells["1.5"].reasons
    assert "cannot be planned" in reason and "toy/pool.py:" in reason


def test_what_moved_since_the_last_release_where_it_applied(cells: dict[str, Cell]) -> None:
    (edit,) = cells["1.2"].edits
    assert (edit.state, edit.last_applied, edit.first_applied) == ("missing", "1.1", "")
    (move,) = edit.moved
    line = 1 + SOURCES["1.1"].splitlines().index("        count = (rows)")
    assert move.hunk == "rows[1]" and move.was == f"toy/pool.py:{line}: count = (rows)"
    assert move.diff == ["-         count = (rows)", "+         count = int(rows)"]
    assert "nearest candidate" in move.now


def test_before_it_ever_applied_it_is_compared_with_the_first_that_does(cells: dict[str, Cell]) -> None:
    (edit,) = cells["0.9"].edits
    assert (edit.last_applied, edit.first_applied) == ("", "1.0")
    assert [move.hunk for move in edit.moved] == ["rows[2]"]
    assert "-         if self.is_small():" in edit.moved[0].diff


def test_bytes_are_those_that_the_server_sent(toy: Catalog, index: ToyIndex, cache: Cache) -> None:
    made = make(toy, index, cache)
    whole = sum(len(data) for path, data in index.server.files.items() if path.startswith("/files/"))
    assert sum(cell.bytes for cell in made.cells) == made.traffic.moved_bytes
    assert 0 < made.traffic.moved_bytes < whole
    files = [path for path in index.asked() if path.startswith("/files/")]
    assert len(files) == made.traffic.requests
    assert made.whole == []
    assert [cell.bytes for cell in made.cells if cell.state == "not-needed"] == [0, 0]


def test_a_second_run_only_revalidates_the_page(toy: Catalog, index: ToyIndex, cache: Cache) -> None:
    first = make(toy, index, cache)
    index.asked()
    index.server.statuses = [304]
    second = make(toy, index, cache)
    assert index.asked() == ["/simple/toy/"]
    assert second.traffic.moved_bytes == 0
    assert [cell.state for cell in second.cells] == [cell.state for cell in first.cells]


def test_a_second_run_parses_nothing_and_says_the_same(
    toy: Catalog, index: ToyIndex, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make(toy, index, cache, spec=">=1.0,<1.2")
    assert [cell.state for cell in first.cells] == ["pending", "pending"]
    monkeypatch.setattr(codemod, "examine", None)
    second = make(toy, index, cache, spec=">=1.0,<1.2")
    assert [cell.edits for cell in second.cells] == [cell.edits for cell in first.cells]


def test_offline_needs_nobody_and_says_what_is_missing(toy: Catalog, index: ToyIndex, cache: Cache) -> None:
    first = make(toy, index, cache, spec="==1.0")
    index.asked()
    assert make(toy, index, cache, spec="==1.0", offline=True).cells[0].edits == first.cells[0].edits
    with pytest.raises(UnreachableError, match=r"toy 1\.1: .*--offline"):
        make(toy, index, cache, offline=True)
    assert index.asked() == []


def test_every_release_that_cannot_be_read_is_named(toy: Catalog, index: ToyIndex, cache: Cache) -> None:
    for version in ("1.0", "1.2"):
        del index.server.files[f"/files/toy-{version}-py3-none-any.whl"]  # listed, and gone
    with pytest.raises(UnreachableError) as caught:
        make(toy, index, cache)
    assert "toy 1.0: " in caught.value.message and "toy 1.2: " in caught.value.message
    assert "toy 1.1: " not in caught.value.message


def test_another_record_than_at_first_use_is_a_broken_pin(
    toy: Catalog, index: ToyIndex, cache: Cache, tmp_path: Path
) -> None:
    make(toy, index, cache, spec="==1.0")
    for entry in (cache.root / "sha256").rglob("*"):
        if entry.is_file():
            entry.unlink()
    index.server.files["/files/toy-1.0-py3-none-any.whl"] = wheel("1.0", SOURCES["1.3"])
    with pytest.raises(PinError, match=r"toy 1\.0: .*RECORD has sha256"):
        make(toy, index, cache, spec="==1.0")


def test_a_server_without_ranges_costs_whole_wheels_and_that_is_counted(
    toy: Catalog, index: ToyIndex, cache: Cache
) -> None:
    index.server.ranges = False
    made = make(toy, index, cache, spec="==1.0")
    assert made.cells[0].state == "pending"
    assert made.whole == ["toy-1.0-py3-none-any.whl"]
    assert made.traffic.moved_bytes >= len(index.server.files["/files/toy-1.0-py3-none-any.whl"])


def test_cells_read_back_as_they_were(cells: dict[str, Cell], tmp_path: Path) -> None:
    file = tmp_path / "cells.json"
    document = as_dict(list(cells.values()))
    file.write_text(json.dumps(document))
    assert load_cells(file) == list(cells.values())
    assert {"patch", "version", "state", "edits", "bytes"} <= set(document["cells"][0])
    file.write_text(json.dumps({**document, "error": {"message": "m", "hint": "", "exit_code": 4}}))
    assert load_cells(file) == list(cells.values())


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"cells": [{"patch": 1}]}'])
def test_a_file_that_is_no_matrix_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "cells.json").write_text(text)
    with pytest.raises(UsageError, match="not a matrix"):
        load_cells(tmp_path / "cells.json")


def test_a_damaged_wheel_is_no_drift(toy: Catalog, index: ToyIndex, cache: Cache) -> None:
    index.server.files["/files/toy-1.0-py3-none-any.whl"] = b"not a zip archive"
    with pytest.raises(GraftworkError, match=r"toy 1\.0: .*zip") as caught:
        make(toy, index, cache)
    assert caught.value.exit_code == 2


def test_releases_stand_together_where_as_many_hunks_match(
    cells: dict[str, Cell], capsys: pytest.CaptureFixture[str]
) -> None:
    drifted = cells["0.9"]
    (edit,) = drifted.edits
    worse = replaced(edit, hunks=[replaced(hunk, state="missing") for hunk in edit.hunks])
    row = [("0.9", edit), ("1.0", edit), ("1.1", worse)]
    show([replaced(drifted, version=version, edits=[one]) for version, one in row], Screen())
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  toy/rows  drifted")]
    assert lines == [
        ["toy/rows", "drifted", "0.9", "to", "1.0", "(2)", "1/2", "-"],
        ["toy/rows", "drifted", "1.1", "0/2", "-"],
    ]
