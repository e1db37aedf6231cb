"""Other Pythons of this host: found only if they run, and asked for bytecode that does not depend on the host."""

from __future__ import annotations

import importlib.util
import marshal
import os
import sys
from pathlib import Path

import pytest

from graftwork.errors import ProofError, UsageError
from graftwork.images import interpreters
from graftwork.images.interpreters import Interpreter, find_interpreter, need_interpreter

SOURCE = b"def f(x):\n    return x in {'one', 'two', 'three', 'four', 'five'}\n"
OWN = f"3.{sys.version_info[1]}"


def script(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    return folder


def test_this_python_is_found_without_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    found = find_interpreter(OWN)
    assert found and found.program == Path(sys.executable)


def test_broken_shims_and_liars_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shim = script(tmp_path / "shim", "python3.99", "echo 'command not found' >&2; exit 127")
    liar = script(tmp_path / "liar", "python3.99", f'exec {sys.executable} "$@"')
    monkeypatch.setenv("PATH", f"{shim}{os.pathsep}{liar}")
    assert find_interpreter("3.99") is None
    answer = f"echo {sys.executable}; echo 3.99 cpython-399"
    right = script(tmp_path / "right", "python3.99", answer)
    monkeypatch.setenv("PATH", f"{shim}{os.pathsep}{liar}{os.pathsep}{right}")
    assert find_interpreter("3.99") == Interpreter("3.99", "cpython-399", Path(sys.executable))


def test_a_missing_python_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ProofError, match=r"Python 3\.99 is needed") as caught:
        need_interpreter("3.99")
    assert caught.value.exit_code == 4
    assert "whiteout" in caught.value.hint


def test_bytecode_is_the_same_each_time(interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    made = set()
    for seed in ("1", "2", "3"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        monkeypatch.setenv("PYTHONOPTIMIZE", seed)
        made.add(interpreter.checked_pyc(SOURCE, "/srv/x.py"))
    assert len(made) == 1
    assert int.from_bytes(made.pop()[4:8], "little") == 0b11


def test_bytecode_runs_and_is_judged_the_same(interpreter: Interpreter) -> None:
    pyc = interpreter.checked_pyc(SOURCE, "/srv/x.py")
    name = f"x.{interpreter.tag}.pyc"
    assert interpreter.judge(interpreter.tag, name, pyc, SOURCE, 0) == ("same", "")
    unchecked = pyc[:4] + (1).to_bytes(4, "little") + pyc[8:]
    verdict = interpreter.judge(interpreter.tag, name, unchecked, SOURCE + b"x = 1\n", 0)
    assert verdict and verdict[0] == "stale"
    assert interpreter.judge(interpreter.tag, name, pyc, SOURCE + b"x = 1\n", 0) == (
        "unloaded",
        "the interpreter would not load it",
    )
    assert interpreter.judge("cpython-27", name, pyc, SOURCE, 0) is None
    if interpreter.minor == OWN:
        assert pyc[8:16] == importlib.util.source_hash(SOURCE)
        names: dict[str, object] = {}
        exec(marshal.loads(pyc[16:]), names)
        assert names["f"]("five") is True  # type: ignore[operator]


def test_source_that_does_not_compile_is_named(interpreter: Interpreter) -> None:
    with pytest.raises(UsageError, match=rf"Python {interpreter.minor} .* could not compile /srv/x\.py: SyntaxError"):
        interpreter.checked_pyc(b"def", "/srv/x.py")


def test_this_python_needs_no_foreign_judge() -> None:
    assert interpreters.foreign_judge(OWN) is None
