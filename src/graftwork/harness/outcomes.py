"""What became of each test of a patch: passed, skipped, or failed, and then by what.

A failure counts as the test's own assertion only if it is raised in the test itself: an AssertionError, ``pytest.fail``
or a ``pytest.raises`` that saw nothing, where the innermost frame of the tests or the tree belongs to the tests.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Collection, Generator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import pytest

Kind = Literal["passed", "skipped", "assertion", "engine", "broken"]
_WORST: tuple[Kind, ...] = ("assertion", "engine", "broken")


@dataclass(frozen=True)
class Outcome:
    """One test: ``kind`` is what became of it.

    ``assertion``: failed by its own assertion. ``engine``: an error came out of the engine's text. ``broken``: the
    test, a fixture, an import or the collection failed. ``where`` is file and line of the deciding frame.
    """

    test: str
    kind: Kind
    phase: str = "call"
    error: str = ""
    where: str = ""


class Recorder:
    """Pytest plugin that collects outcomes. With *enough*, the run ends at the first outcome of such a kind."""

    def __init__(self, tests: str, tree: str, enough: Collection[Kind] = ()) -> None:
        self.tests, self.tree = os.path.realpath(tests), os.path.realpath(tree)
        self.enough = enough
        self.outcomes: list[Outcome] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.outcome == "failed":
            error = call.excinfo.value if call.excinfo else None
            self._add(self._failed(item.nodeid, report.when or "", error))
        elif report.outcome == "skipped":
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", "")
            self._add(Outcome(item.nodeid, "skipped", report.when or "", str(reason).removeprefix("Skipped: ")))
        elif report.when == "call":
            self._add(Outcome(item.nodeid, "passed"))
        if any(outcome.kind in self.enough for outcome in self.outcomes):
            item.session.shouldfail = "the harness has seen enough"
        return report

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome == "failed":
            self._add(Outcome(report.nodeid or "collection", "broken", "collection", _last_line(report.longreprtext)))
        elif report.outcome == "skipped":
            self._add(Outcome(report.nodeid, "skipped", "collection", _last_line(report.longreprtext)))

    def _add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def _failed(self, test: str, phase: str, error: BaseException | None) -> Outcome:
        if error is None:  # a strict xfail that passed: there is no error to judge
            return Outcome(test, "broken", phase, "passed, and was expected to fail")
        kind, where = self.judge(error, phase)
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        return Outcome(test, kind, phase, f"{type(error).__name__}: {first}"[:300], where)

    def judge(self, error: BaseException, phase: str) -> tuple[Kind, str]:
        """(kind, where) of an error. A group of errors is as bad as the worst one in it."""
        inner = getattr(error, "exceptions", None)
        if isinstance(inner, (list, tuple)) and inner:
            return max((self.judge(each, phase) for each in inner), key=lambda found: _WORST.index(found[0]))
        sides = [
            (side, f"{Path(frame.f_code.co_filename).name}:{line}")
            for frame, line in traceback.walk_tb(error.__traceback__)
            if (side := self._side(frame.f_code.co_filename))
        ]
        side, where = sides[-1] if sides else ("", "")
        own = isinstance(error, (AssertionError, pytest.fail.Exception))
        if own and side == "tests" and phase == "call":
            return "assertion", where
        through = [place for found, place in sides if found == "tree"]
        return ("engine", through[-1]) if through else ("broken", where)

    def _side(self, filename: str) -> str:
        real = _real(filename)
        if real.startswith(self.tests + os.sep):
            return "tests"
        return "tree" if real.startswith(self.tree + os.sep) else ""


@lru_cache(maxsize=256)
def _real(filename: str) -> str:
    return os.path.realpath(filename)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("E").strip()[:300] if lines else ""
