"""Whose failure it is: the test's own assertion, the engine's error, or a test that is broken."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from graftwork.harness.outcomes import Outcome
from graftwork.harness.runner import Job, run_all

ENGINE = """\
def fail(kind):
    raise kind("from the engine")


def call(function):
    return function()


def check(value):
    assert value, "the engine's own assertion"
"""

TESTS = '''\
import pytest

from graftwork.harness.defect import defect
from graftwork.harness.isolate import load_function, load_module


@pytest.fixture
def engine(engine_tree):
    return load_module(engine_tree / "toy/pool.py", "toy.pool")


@pytest.fixture
def broken(engine):
    raise AssertionError("a fixture")


@pytest.fixture
def engine_in_fixture(engine):
    engine.fail(KeyError)


@pytest.fixture
def at_the_end(engine):
    yield
    raise AssertionError("at the end")


def stub_that_asserts():
    assert 1 == 2, "in a stub"


def stub_that_raises():
    raise RuntimeError("in a stub")


def test_passes(engine):
    assert engine.call(int) == 0


def test_skipped():
    pytest.skip("not here")


@pytest.mark.xfail(reason="known")
def test_xfail():
    assert False


@pytest.mark.xfail(strict=True, reason="known")
def test_strict_xfail():
    pass


def test_asserts():
    assert 1 == 2


def test_fails():
    pytest.fail("said so")


def test_did_not_raise(engine):
    with pytest.raises(ValueError):
        engine.call(int)


def test_assertion_in_a_stub_that_the_engine_calls(engine):
    engine.call(stub_that_asserts)


def test_named_defect(engine):
    with defect(ValueError, match="from the engine"):
        engine.fail(ValueError)


def test_defect_of_a_stub(engine):
    with defect(RuntimeError, match="in a stub"):
        engine.call(stub_that_raises)


def test_other_defect(engine):
    with defect(ValueError, match="something else"):
        engine.fail(ValueError)


def test_other_kind(engine):
    with defect(ValueError, match="from the engine"):
        engine.fail(KeyError)


def test_raw_error(engine):
    engine.fail(ValueError)


def test_error_of_a_stub(engine):
    engine.call(stub_that_raises)


def test_assertion_of_the_engine(engine):
    engine.check(0)


def test_engine_in_fixture(engine_in_fixture):
    pass


def test_missing_name():
    assert undefined_name  # noqa: F821


def test_missing_attribute(engine):
    assert engine.helper


def test_missing_function(engine_tree):
    load_function(engine_tree / "toy/pool.py", "helper", {})


def test_import():
    import no_such_module


def test_fixture(broken):
    pass


def test_teardown(at_the_end):
    pass


def test_group(engine):
    errors = []
    for action in (lambda: engine.fail(ValueError), lambda: pytest.fail("own")):
        try:
            action()
        except BaseException as error:
            errors.append(error)
    raise Several("several", errors)


class Several(Exception):
    """As ExceptionGroup, which Python 3.10 lacks."""

    def __init__(self, text, exceptions):
        super().__init__(text)
        self.exceptions = tuple(exceptions)
'''

KINDS = {
    "passed": ["test_passes"],
    "skipped": ["test_skipped", "test_xfail"],
    "assertion": [
        "test_asserts",
        "test_fails",
        "test_did_not_raise",
        "test_assertion_in_a_stub_that_the_engine_calls",
        "test_named_defect",
        "test_defect_of_a_stub",
    ],
    "engine": [
        "test_other_defect",
        "test_other_kind",
        "test_raw_error",
        "test_error_of_a_stub",
        "test_assertion_of_the_engine",
        "test_engine_in_fixture",
        "test_group",
    ],
    "broken": [
        "test_strict_xfail",
        "test_missing_name",
        "test_missing_attribute",
        "test_missing_function",
        "test_import",
        "test_fixture",
    ],
}


def folder_of(folder: Path, text: str) -> Path:
    tests = folder / "tests"
    tests.mkdir(parents=True)
    (tests / "test_all.py").write_text(text, "utf-8")
    return tests


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Outcome]]:
    tests = folder_of(tmp_path_factory.mktemp("outcomes"), TESTS)
    ((_, run),) = run_all([("all", Job(tests, {"toy/pool.py": ENGINE.encode()}, "toy", "1.0"))], 1)
    assert run.trouble == ""
    found: dict[str, list[Outcome]] = {}
    for outcome in run.outcomes:
        found.setdefault(outcome.test.partition("::")[2], []).append(outcome)
    return found


@pytest.mark.parametrize(("kind", "test"), [(kind, test) for kind, tests in KINDS.items() for test in tests])
def test_each_failure_is_told_by_where_it_comes_from(outcomes: dict[str, list[Outcome]], kind: str, test: str) -> None:
    assert [outcome.kind for outcome in outcomes[test]] == [kind]


def test_a_teardown_that_fails_breaks_a_test_that_passed(outcomes: dict[str, list[Outcome]]) -> None:
    assert [(each.kind, each.phase) for each in outcomes["test_teardown"]] == [
        ("passed", "call"),
        ("broken", "teardown"),
    ]


def test_every_test_is_named(outcomes: dict[str, list[Outcome]]) -> None:
    assert set(outcomes) == {"test_teardown", *(test for tests in KINDS.values() for test in tests)}


def test_where_is_the_deciding_line(outcomes: dict[str, list[Outcome]]) -> None:
    assert outcomes["test_raw_error"][0].where == "pool.py:2"
    assert outcomes["test_raw_error"][0].error == "ValueError: from the engine"
    assert outcomes["test_asserts"][0].where.startswith("test_all.py:")


def test_a_run_ends_at_the_first_outcome_that_counts(tmp_path: Path) -> None:
    names = ["test_passes", "test_raw_error", "test_asserts", "test_fails"]
    body = "\n".join(f"def {name}():\n    assert {name == 'test_passes'}\n" for name in names)
    tests = folder_of(tmp_path, body)
    job = Job(tests, {"toy/pool.py": b""}, "toy", "1.0", frozenset({"assertion"}))
    ((_, run),) = run_all([("one", job)], 1)
    assert [outcome.kind for outcome in run.outcomes] == ["passed", "assertion"]


def test_no_tests_is_trouble(tmp_path: Path) -> None:
    tests = folder_of(tmp_path, "")
    ((_, run),) = run_all([("none", Job(tests, {"toy/pool.py": b""}, "toy", "1.0"))], 1)
    assert run.trouble == "pytest ended with exit code 5 (no tests collected)"


def test_the_environment_of_the_caller_does_not_reach_the_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    monkeypatch.setenv("GRAFTWORK_TREE", "/nowhere")
    tests = folder_of(
        tmp_path, "def test_tree(engine_tree, engine_version):\n    assert str(engine_version) == '1.0'\n"
    )
    ((_, run),) = run_all([("one", Job(tests, {"toy/pool.py": b""}, "toy", "1.0"))], 1)
    assert [outcome.kind for outcome in run.outcomes] == ["passed"]


def test_processes_that_a_test_leaves_behind_are_ended(tmp_path: Path) -> None:
    """The child writes its id and waits for ever; afterwards no process has that id."""
    note = tmp_path / "pid"
    text = "import subprocess, sys\n\n\ndef test_child():\n"
    text += "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(10**6)'])\n"
    text += f"    open({str(note)!r}, 'w').write(str(child.pid))\n"
    ((_, run),) = run_all([("one", Job(folder_of(tmp_path, text), {"toy/pool.py": b""}, "toy", "1.0"))], 1)
    assert [outcome.kind for outcome in run.outcomes] == ["passed"]
    deadline = time.monotonic() + 60
    while alive(int(note.read_text())) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(int(note.read_text()))


def alive(pid: int) -> bool:
    """Whether the process runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
