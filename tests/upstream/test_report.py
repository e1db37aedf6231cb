"""The heat map and the report: every cell and reason is there, hostile text stays text, same input gives same bytes."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest
from browser import DARK, Cells, colours, dom, picture
from upstream.toy_releases import STATES, toy_catalog

from graftwork.catalog.catalog import Catalog
from graftwork.upstream.heat import heat_map, matrix_page
from graftwork.upstream.matrix_cells import Cell, EditCell, HunkCell, Move, OwnTests
from graftwork.upstream.report import gather, report
from graftwork.upstream.report_page import esc

HOSTILE = "<script>alert(1)</script>\" onmouseover='x' &lt; \u202egnp.exe\u2066 \x1b[31m\x00 </td></table> ]]> {{7*7}}"
TODAY = date(2026, 11, 30)
THREADS = """
[[upstream]]
ref = "example/toy#7"
kind = "pull"
relation = "superseding"
assumes = "open"
expect = "drop it when this merges"

[[evidence]]
kind = "measured"
text = "it fails"
source = "a test"
date = "2026-11-01"
"""


def cell(version: str, state: Any, **more: Any) -> Cell:
    name = f"toy-{version}-py3-none-any.whl"
    about = {"revision": "R2", "platform": "cpu", "wheel": name, "trust": "index", "bytes": 1, "edits": []}
    return Cell(patch="toy/rows", version=version, state=state, **{**about, **more})


DRIFTED = EditCell(
    id="rows",
    state="missing",
    last_applied="1.1",
    hunks=[HunkCell(name="rows[1]", file="toy/pool.py", state="missing", anchor="count = rows", detail=HOSTILE)],
    moved=[Move(hunk="rows[1]", was=f"toy/pool.py:15: {HOSTILE}", now=HOSTILE, diff=[f"- {HOSTILE}", "+ x"])],
)
CELLS = [
    *(cell(version, state) for version, state in STATES.items() if version not in ("1.1", "1.2")),
    cell("1.1", "pending", tests=OwnTests(passed=3, skipped=1, failed={f"test_{HOSTILE}": HOSTILE})),
    cell("1.2", "drifted", edits=[DRIFTED], reasons=[HOSTILE]),
    cell("1.10", "outdated"),
    cell("1.11", "partial"),
]


@pytest.fixture
def toy(tmp_path: Path) -> Catalog:
    toy = toy_catalog(tmp_path / "toy")
    file = toy.root / "patches/toy/rows/patch.toml"
    file.write_text(file.read_text() + THREADS)
    pull = {"ref": "example/toy#7", "kind": "pull", "method": "as stored", "state": "merged", "as_of": "2026-10-01"}
    collision = {"ref": "example/toy#9", "anchor": "rows[1]", "file": "toy/pool.py", "ours": [15, 15]}
    scan = {"repository": "example/toy", "as_of": "2026-11-29", "method": "REST", "version": "1.0", "open": 40}
    evidence = {
        "patch": "toy/rows",
        "refs": [{**pull, "title": HOSTILE, "reason": HOSTILE, "moved_to": HOSTILE}],
        "contained": [
            {"ref": "example/toy#7", "as_of": "2026-11-29", "method": "wheels", "first": "1.3", "note": HOSTILE}
        ],
        "collisions": [{**collision, "theirs": [14, 16], "title": HOSTILE}],
        "scans": [{**scan, "looked_at": 40}],
    }
    (toy.root / "patches/toy/rows/upstream.json").write_bytes(msgspec.json.encode(evidence))
    return toy.catalog


def made(toy: Catalog, cells: list[Cell] = CELLS, today: date = TODAY) -> str:
    return report(gather(toy, [toy.patch(name) for name in toy.patch_ids], cells, today), "the end")


def test_every_cell_is_in_the_heat_map_with_its_state_in_order_of_version() -> None:
    found = Cells(heat_map(CELLS)).cells
    assert {version: state for (_, version), (state, _) in found.items()} == {c.version: c.state for c in CELLS}
    assert [version for _, version in found] == [*STATES, "1.10", "1.11"]
    assert all(state in text for state, text in found.values()), "the state is a word, not only a colour"


def test_a_release_that_a_patch_was_not_planned_on_is_an_empty_cell() -> None:
    other = msgspec.structs.replace(CELLS[0], patch="toy/other", version="3.0")
    page = heat_map([*CELLS, other])
    assert len(Cells(page).cells) == len(CELLS) + 1
    assert page.count('data-state="none"') == len(CELLS) + 1


def test_each_engine_has_a_table_of_its_own_releases() -> None:
    other = msgspec.structs.replace(cell("9.0", "pending"), patch="another/rows")
    page = heat_map([*CELLS, other])
    assert page.count("<table") == 2 and page.count('class="legend"') == 1
    assert len(Cells(page).cells) == len(CELLS) + 1
    assert 'data-state="none"' not in page


def test_every_cell_leads_to_its_reason(toy: Catalog) -> None:
    for page in (matrix_page(CELLS, "x"), made(toy)):
        tags = Cells(page).tags
        ids = [found["id"] for _, found in tags if "id" in found]
        links = [found["href"] or "" for tag, found in tags if tag == "a" and (found["href"] or "").startswith("#")]
        assert len(ids) == len(set(ids))
        assert len([link for link in links if link.startswith("#why--")]) == len(CELLS)
        assert {link[1:] for link in links} <= set(ids)


def test_what_moved_and_failed_tests_are_told(toy: Catalog) -> None:
    text = Cells(made(toy)).text
    assert "what moved since 1.1, the last release where it applied" in text
    assert "1 failed" in text
    assert "RECORD was taken from the package index at first use" in text


def test_hostile_text_stays_text(toy: Catalog) -> None:
    """What comes from upstream opens no tag, closes no attribute, and shows as what it is."""
    clean = [msgspec.structs.replace(c, reasons=[], tests=None, edits=[]) for c in CELLS]
    for page, plain in ((made(toy), made(toy, clean)), (matrix_page(CELLS, HOSTILE), matrix_page(clean, "x"))):
        tags = Cells(page).tags
        assert not [tag for tag, _ in tags if tag in ("script", "iframe", "img", "link", "object", "form")]
        assert not [name for _, found in tags for name in found if name.startswith("on") or name in ("src", "srcset")]
        assert {tag for tag, _ in tags} <= {tag for tag, _ in Cells(plain).tags} | {
            "ul",
            "li",
            "pre",
            "details",
            "summary",
            "p",
            "br",
            "code",
            "small",
        }
        assert not set("\x00\x1b\u202e\u2066") & set(page)
        assert "<script>alert(1)</script>" in Cells(page).text


def test_nothing_is_loaded_from_elsewhere(toy: Catalog) -> None:
    page = made(toy)
    assert "url(" not in page and "@import" not in page
    assert "default-src 'none'; style-src 'unsafe-inline'" in page


def test_the_same_evidence_and_date_give_the_same_bytes(toy: Catalog) -> None:
    assert made(toy) == made(toy)
    assert made(toy, list(reversed(CELLS))) == made(toy)


def test_ages_are_counted_to_the_given_day(toy: Catalog) -> None:
    assert "2026-10-01 (60 days)" in Cells(made(toy)).text
    later = Cells(made(toy, today=date(2026, 10, 31))).text
    assert "2026-10-01 (30 days)" in later
    assert "older than 30 days" in Cells(made(toy)).text
    assert "older than 30 days" not in later


def test_what_asks_for_attention_is_said_first(toy: Catalog) -> None:
    text = Cells(made(toy)).text
    assert "example/toy#9 changes lines near rows[1] of toy/rows" in text
    assert "written for: open" in text and "first in 1.3" in text
    assert "toy/rows: example/toy#7 is merged (2026-10-01), patch.toml assumes that it is open" in text
    drifted = [cell("1.0", "drifted") if c.version == "1.0" else c for c in CELLS]
    assert "toy/rows is drifted in t (1.0)" in Cells(made(toy, drifted)).text
    assert "toy/rows is drifted in t (1.0)" not in text


def test_a_report_without_a_matrix_or_evidence_says_so(tmp_path: Path) -> None:
    toy = toy_catalog(tmp_path / "toy").catalog
    text = Cells(made(toy, [])).text
    assert "the matrix was not made" in text
    assert "were not looked through yet" in text
    assert "not in the matrix" in text


@pytest.mark.parametrize("value", ["a & b", "<", "'\"", "é", 7, "line\nline"])
def test_escaping_keeps_every_character_that_can_be_shown(value: object) -> None:
    assert Cells(f'<p title="{esc(value)}">{esc(value)}</p>').text == str(value)


def test_a_browser_sees_the_same_cells_in_light_and_dark(toy: Catalog, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(made(toy), "utf-8")
    seen = Cells(dom(page))
    assert {version: state for (_, version), (state, _) in seen.cells.items()} == {c.version: c.state for c in CELLS}
    assert not [tag for tag, _ in seen.tags if tag == "script"]
    light = colours(picture(page, tmp_path / "light.png"))
    dark = colours(picture(page, tmp_path / "dark.png", DARK))
    assert max(light, key=light.__getitem__) == "#ffffff"
    assert all(light.get(state, 0) > 500 for state in ("#dafbe1", "#ffd8d3", "#fff1c2"))
    assert max(dark, key=dark.__getitem__) == "#0d1117"
    assert all(dark.get(state, 0) > 500 for state in ("#12391f", "#4b1a1b", "#403000"))
