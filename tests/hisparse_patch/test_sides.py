"""Processes of sides: lines as they come, paths in front, and ends that are not lost."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import json, os, sys
asked = json.loads(sys.argv[2])
print("hello from", asked["side"])
with open(asked["answer"], "a") as file:
    for number in range(asked["lines"]):
        line = {"number": number, "path": os.environ.get("PYTHONPATH")}
        line["one"] = os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"]
        file.write(json.dumps(line) + chr(10))
    file.write('{"torn')
sys.exit(asked["code"])
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def test_all_lines_and_codes_arrive(
    bench: Any, tmp_path: Path, script: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = bench("sides")
    monkeypatch.setenv("PYTHONPATH", "/there")
    made = [
        sides.Side(f"s{number}", script, {"lines": 3, "code": number % 2}, tmp_path / f"s{number}", path)
        for number, path in enumerate(["/first", None, "/second"])
    ]
    seen: list[tuple[str, Any]] = []
    codes = sides.run(made, 2, lambda side, line: seen.append((side.name, line)))
    assert codes == {"s0": 0, "s1": 1, "s2": 0}
    assert sorted((name, line["number"]) for name, line in seen) == [(f"s{i}", n) for i in range(3) for n in range(3)]
    paths = {name: line["path"] for name, line in seen}
    assert paths == {"s0": f"/first{os.pathsep}/there", "s1": "/there", "s2": f"/second{os.pathsep}/there"}
    assert all(line["one"] == "0" for _, line in seen)
    shown = capsys.readouterr().out
    assert "s1: ended with 1" in shown and "hello from s1" in shown and "hello from s0" not in shown


def test_a_line_that_is_not_whole_waits(bench: Any, tmp_path: Path) -> None:
    side = bench("sides").Side("s", "", {}, tmp_path)
    assert side.lines() == []
    answer = tmp_path / "answer"
    answer.write_text('{"a": 1}\n{"b"')
    assert side.lines() == [{"a": 1}]
    assert side.lines() == []
    with answer.open("a") as file:
        file.write(": 2}\n")
    assert side.lines() == [{"b": 2}]


def test_a_side_that_hangs_is_killed(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sides = bench("sides")
    monkeypatch.setattr(sides, "LIMIT", 0.5)
    script = tmp_path / "script.py"
    script.write_text("import time; time.sleep(60)")
    assert sides.run([sides.Side("s", str(script), {}, tmp_path / "s")], 1, lambda side, line: None) == {"s": -9}


def test_answers_of_an_earlier_run_do_not_count(bench: Any, tmp_path: Path, script: str) -> None:
    sides = bench("sides")
    seen: list[Any] = []
    for lines in (3, 1):
        seen.clear()
        made = sides.Side("s", script, {"lines": lines, "code": 0}, tmp_path / "s")
        sides.run([made], 1, lambda side, line: seen.append(line))
    assert len(seen) == 1
