"""``graftwork prove`` as a person and a CI system call it: exit codes, table, JSON, JUnit, refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from proving import PATCH, Proving
from toys import ROOT

from graftwork.errors import UsageError
from graftwork.harness.prove import Row, check_requirements
from graftwork.harness.report import junit
from graftwork.harness.variants import Variant
from graftwork.harness.verdict import Verdict

NAMES = [
    "all in",
    "patch out",
    "rows[1]",
    "rows[2]",
    "rows[3]",
    "R1",
    "markers, stock logic",
    "always-padded",
    "one-less",
]


def prove(toy: Proving, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "scripts/revert_harness.py", *arguments, "--catalog", toy.root]
    return subprocess.run([*map(str, command)], cwd=toy.root, env={**os.environ}, capture_output=True, text=True)


def test_a_good_catalog(tmp_path: Path) -> None:
    toy = Proving(tmp_path)
    done = prove(toy, "t", "--tree", toy.tree, "--junit", tmp_path / "junit.xml", "-j", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("9 variants of 1 patches, every one noticed\n")
    assert [line for line in done.stdout.splitlines() if line.startswith("  hunk rows[2] ") and " ok " in line]
    (suite,) = ET.parse(tmp_path / "junit.xml").getroot()
    assert suite.attrib["name"] == "t: toy/rows"
    assert (suite.attrib["tests"], suite.attrib["failures"]) == ("9", "0")
    assert {case.attrib["name"].split(maxsplit=1)[-1] for case in suite} >= {"rows[1]", "R1", "one-less"}


def test_a_fault_is_exit_4_in_every_form(tmp_path: Path) -> None:
    toy = Proving(tmp_path, "def test_nothing(engine_tree):\n    assert engine_tree\n")
    done = prove(toy, "--tree", toy.tree, "--json", "--junit", tmp_path / "junit.xml")
    assert done.returncode == 4
    document = json.loads(done.stdout)
    assert document["error"]["exit_code"] == 4
    assert [row["name"] for row in document["variants"]] == NAMES
    out = document["variants"][1]
    assert (out["sort"], out["target"], out["patch"], out["noticed"]) == ("out", "t", "toy/rows", ["marker"])
    assert out["fault"] == "no test fails by its own assertion: 1 pass"
    failures = ET.parse(tmp_path / "junit.xml").findall(".//failure")
    assert out["fault"] in [failure.attrib["message"] for failure in failures]
    assert len(failures) == sum(bool(row["fault"]) for row in document["variants"])


def test_quiet_shows_the_error_only(tmp_path: Path) -> None:
    toy = Proving(tmp_path, "def test_nothing():\n    assert False\n")
    quiet = prove(toy, "--tree", toy.tree, "--quiet")
    assert (quiet.returncode, quiet.stdout) == (4, "")
    assert "1 of 9 variants are not as they must be, first t toy/rows, all in: 1 tests fail" in quiet.stderr
    assert "docs/harness.md" in quiet.stderr


def test_only_the_named_patch(tmp_path: Path) -> None:
    toy = Proving(tmp_path)
    toy.patch(
        "idle",
        PATCH.replace('"toy/rows"', '"toy/idle"').replace("R1", "R0")
        + '[[not_needed]]\nversions = ">0"\nreason = "mended"\n',
    )
    toy.write("patches/toy/idle/old.toml", (toy.root / "patches/toy/rows/old.toml").read_text())
    toy.target(lambda text: text.replace('["toy/rows"]', '["toy/idle", "toy/rows"]'))
    done = prove(toy, "t", "--tree", toy.tree, "--patch", "toy/idle")
    assert done.returncode == 0
    assert "toy/idle is not-needed: mended" in done.stdout
    assert done.stdout.endswith("no patch is needed here: there is nothing to prove\n")
    wrong = prove(toy, "t", "--tree", toy.tree, "--patch", "toy/other")
    assert wrong.returncode == 2
    assert "no patch 'toy/other'" in wrong.stderr
    toy.target(lambda text: text.replace('["toy/idle", "toy/rows"]', '["toy/rows"]'))
    elsewhere = prove(toy, "t", "--tree", toy.tree, "--patch", "idle")
    assert elsewhere.returncode == 2
    assert "no patch 'toy/idle' in t" in elsewhere.stderr
    assert "known: toy/rows" in elsewhere.stderr


def test_a_tree_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    toy = Proving(tmp_path)
    toy.change("tree/toy/pool.py", "count = rows", "count = int(rows)")
    drifted = prove(toy, "--tree", toy.tree)
    assert drifted.returncode == 3
    assert "toy/rows is partial" in drifted.stderr or "toy/rows is drifted" in drifted.stderr


def test_a_tree_that_is_patched_already_is_refused(tmp_path: Path) -> None:
    toy = Proving(tmp_path)
    (_, stage), *_ = toy.stages()
    toy.write("tree/toy/pool.py", stage.plan.changes[0].new.decode())  # type: ignore[union-attr]
    done = prove(toy, "--tree", toy.tree)
    assert done.returncode == 2
    assert "toy/rows is in it already" in done.stderr


def test_a_junit_file_that_cannot_be_written(tmp_path: Path) -> None:
    toy = Proving(tmp_path)
    done = prove(toy, "--tree", toy.tree, "--junit", tmp_path / "no/such/folder.xml")
    assert done.returncode == 2
    assert "cannot be written" in done.stderr


@pytest.mark.parametrize(
    "text",
    ["import torch\n", "from torch import nn\n", "import pytest\n\n\ndef f():\n    pytest.importorskip('torch')\n"],
    ids=["import", "from", "importorskip"],
)
def test_without_torch_it_is_refused_not_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    tests = Proving(tmp_path).root / "patches/toy/rows/tests"
    (tests / "conftest.py").write_text(text, "utf-8")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match="with torch, which is not installed") as refused:
        check_requirements([tests])
    assert "pip install torch" in refused.value.hint


def test_torch_is_asked_for_only_where_a_test_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert check_requirements([Proving(tmp_path).root / "patches/toy/rows/tests"]) == []


def test_a_patch_without_tests_is_refused(tmp_path: Path) -> None:
    toy = Proving(tmp_path)
    (toy.root / "patches/toy/rows/tests/test_rows.py").unlink()
    done = prove(toy, "--tree", toy.tree)
    assert done.returncode == 2
    assert "the patch has no tests" in done.stderr


def test_text_that_xml_cannot_hold_is_replaced() -> None:
    variant = Variant("hunk", "rows[1]", why="<why> \x1b[31m")
    rows = [
        Row("t", "toy/rows", variant, Verdict(("test",), "assert '\x00' == '\ud800' <&>", fault), 0.1)
        for fault in ("", "\x1b]")
    ]
    noticed, failed = ET.fromstring(junit(rows)).iter("testcase")
    assert noticed[0].text == "noticed by test: assert '\ufffd' == '\ufffd' <&>"
    assert (failed[0].attrib["message"], failed[0].text) == ("\ufffd]", "<why> \ufffd[31m")
