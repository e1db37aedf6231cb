"""``graftwork matrix`` and ``graftwork report`` as commands, on a toy index that pip is configured for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Cells
from click.testing import CliRunner, Result
from toys import Toy
from upstream.toy_releases import PATCH, STATES, ToyIndex, toy_catalog, toy_index

from graftwork.cli.main import cli
from graftwork.errors import UnreachableError, UsageError
from graftwork.upstream.matrix import Traffic
from graftwork.upstream.matrix_cells import OwnTests


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return toy_catalog(tmp_path / "toy")


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ToyIndex]:
    with toy_index() as found:
        for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "HTTP_PROXY", "http_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PIP_INDEX_URL", found.url)
        monkeypatch.setenv("GRAFTWORK_CACHE", str(tmp_path / "cache"))
        yield found


def run(toy: Toy, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--catalog", str(toy.root)], standalone_mode=False)


def matrix(toy: Toy, *arguments: str) -> Result:
    return run(toy, "matrix", "--jobs", "1", "--versions", ">=0.7,<2.0.dev0", *arguments)


def process(toy: Toy, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: it forks workers, and this one has threads."""
    command = [
        sys.executable,
        "-c",
        "from graftwork.cli.main import run; run()",
        *arguments,
        "--catalog",
        str(toy.root),
    ]
    return subprocess.run(command, capture_output=True, text=True)


def cells(stdout: str) -> list[dict[str, Any]]:
    (found,) = json.loads(stdout).values()
    return list(found)


def test_one_json_document_on_stdout(toy: Toy) -> None:
    shown = matrix(toy, "--json")
    rows = cells(shown.stdout)
    assert {row["version"]: row["state"] for row in rows} == STATES
    assert "releases  toy 0.7 to 1.5 (9)" in shown.stderr


def test_two_processes_give_what_one_gives(toy: Toy) -> None:
    one = cells(matrix(toy, "--json").stdout)
    done = process(toy, "matrix", "--jobs", "2", "--versions", ">=0.7,<2.0.dev0", "--json")
    assert done.returncode == 0, done.stderr
    assert [{**row, "bytes": 0} for row in cells(done.stdout)] == [{**row, "bytes": 0} for row in one]


def test_what_two_processes_could_not_read_is_one_error(toy: Toy, index: ToyIndex) -> None:
    for version in ("1.0", "1.2"):
        del index.server.files[f"/files/toy-{version}-py3-none-any.whl"]
    done = process(toy, "matrix", "--jobs", "2", "--versions", ">=0.7,<2.0.dev0")
    assert done.returncode == 6 and done.stdout == ""
    assert "toy 1.0: " in done.stderr and "toy 1.2: " in done.stderr and "next" in done.stderr


def test_lines_for_people(toy: Toy) -> None:
    shown = matrix(toy)
    assert shown.return_value == 0
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    assert "toy/rows pending 1.0 to 1.1 (2) 2/2 -" in lines
    assert "rows: what moved since 1.1, the last release where it applied" in lines
    assert lines[-1] == "9 cells: 2 not-needed, 3 drifted, 2 pending, 1 obsolete, 1 applied"


def test_quiet_says_only_the_result(toy: Toy) -> None:
    assert matrix(toy, "--quiet").stdout.startswith("9 cells: ")


def test_a_second_run_moves_no_more_than_the_page(toy: Toy, index: ToyIndex) -> None:
    matrix(toy)
    index.server.statuses = [304]
    assert "nothing moved" in matrix(toy).stdout
    index.asked()
    assert "nothing moved" in matrix(toy, "--offline").stdout
    assert index.asked() == []


def test_the_page_holds_the_same_cells(toy: Toy, tmp_path: Path) -> None:
    matrix(toy, "--html", str(tmp_path / "matrix.html"))
    found = Cells((tmp_path / "matrix.html").read_text("utf-8")).cells
    assert {version: state for (_, version), (state, _) in found.items()} == STATES


def test_patches_by_target_engine_and_name(toy: Toy) -> None:
    toy.patch("other", (toy.root / "patches/toy/rows/patch.toml").read_text().replace("toy/rows", "toy/other"))
    for arguments, wanted in (
        (["--engine", "toy"], {"toy/rows", "toy/other"}),
        (["--target", "t"], {"toy/rows"}),
        (["--patch", "other"], {"toy/other"}),
        (["--patch", "other", "--patch", "toy/rows"], {"toy/rows", "toy/other"}),
    ):
        rows = cells(matrix(toy, "--json", *arguments).stdout)
        assert {row["patch"] for row in rows} == wanted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engine", "other"], "no patch is left"),
        (["--patch", "nothing"], "no patch 'nothing'"),
        (["--target", "t", "--engine", "other"], "no patch is left"),
        (["--versions", "newest"], "--versions"),
        (["--versions", ">9"], "no release of toy"),
        (["--html", "/dev/null/x.html"], "cannot be written"),
    ],
)
def test_wrong_arguments(toy: Toy, arguments: list[str], message: str) -> None:
    shown = matrix(toy, *arguments)
    assert isinstance(shown.exception, UsageError)
    assert message in shown.exception.message and shown.exception.hint


def test_an_engine_without_a_release_in_the_range_is_left_out_and_named(toy: Toy) -> None:
    toy.write("patches/other/rows/patch.toml", PATCH.replace("toy/", "other/"))
    shown = matrix(toy)
    assert (
        shown.exception is None and "no release of other in >=0.7,<2.0.dev0: its patches are left out" in shown.stderr
    )
    assert "other/rows" not in shown.stdout


def test_offline_without_a_cache_is_not_reachable(toy: Toy, index: ToyIndex) -> None:
    shown = matrix(toy, "--offline")
    assert isinstance(shown.exception, UnreachableError)
    assert index.asked() == []


def results(monkeypatch: pytest.MonkeyPatch, **tests: Any) -> None:
    """Let the patches' tests have these results on 1.1, without running any."""
    from graftwork.harness import on_releases

    found = {("toy/rows", "1.1"): OwnTests(**tests)}
    monkeypatch.setattr(on_releases, "own_tests", lambda *_, **__: (found, Traffic(7, 1)))


def test_failed_tests_fail_the_command(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    results(monkeypatch, passed=1, skipped=0, failed={"test_x": "AssertionError: no"})
    shown = matrix(toy, "--run-tests")
    assert shown.return_value == 4 and "toy/rows on 1.1" in shown.stderr
    assert "failed on 1 of 1" in shown.stdout and "test_x: AssertionError: no" in shown.stdout
    as_json = matrix(toy, "--run-tests", "--json")
    assert as_json.return_value == 4
    document = json.loads(as_json.stdout)
    assert document["error"]["exit_code"] == 4
    (row,) = [row for row in document["cells"] if row["version"] == "1.1"]
    assert row["tests"]["failed"] == {"test_x": "AssertionError: no"}


def test_passed_tests_are_counted(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    results(monkeypatch, passed=3, skipped=1)
    shown = matrix(toy, "--run-tests")
    assert shown.return_value == 0 and "passed on 1" in shown.stdout


def test_the_report_from_cells_made_before_is_the_same_page(toy: Toy, tmp_path: Path) -> None:
    """With them nobody is asked, and the same day gives the same bytes."""
    (tmp_path / "cells.json").write_text(matrix(toy, "--json").stdout)
    pages = []
    for name in ("a.html", "b.html"):
        out = str(tmp_path / name)
        shown = run(toy, "report", "--matrix", str(tmp_path / "cells.json"), "--as-of", "2026-11-30", "--out", out)
        assert shown.return_value == 0 and "1 patches, 9 cells" in shown.stdout
        pages.append((tmp_path / name).read_bytes())
    assert pages[0] == pages[1]
    assert b"as of 2026-11-30" in pages[0]


def test_the_report_makes_the_matrix_itself(toy: Toy, tmp_path: Path) -> None:
    out = str(tmp_path / "r.html")
    done = process(toy, "report", "--versions", ">=1.0,<1.2", "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["cells"], document["targets"], document["patches"]) == (2, ["t"], ["toy/rows"])
    assert len(Cells(Path(out).read_text("utf-8")).cells) == 2
