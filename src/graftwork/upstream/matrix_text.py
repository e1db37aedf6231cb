"""The matrix as lines for people: runs of releases in one state, and the reasons of those that need one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from graftwork.patching.report import STYLE
from graftwork.patching.states import State
from graftwork.ui import Screen
from graftwork.upstream.matrix_cells import Cell, counted, patches_of, since, versions_of

_MOST_REASONS = 4


def show(cells: Sequence[Cell], screen: Screen) -> None:
    """A line for each run of releases that are alike, then why, for what is neither pending nor applied."""
    runs = list(_runs(cells))
    rows = [
        (
            run[0].patch,
            run[0].state,
            _span(run),
            _counted(run[-1]) or "-",
            _tests(run),
        )
        for run in runs
    ]
    screen.table(("patch", "state", "releases", "edits", "tests"), rows, [STYLE[State(run[0].state)] for run in runs])
    for run in runs:
        if not _good(run[0]):
            _why(run[0], screen)
        for cell in run:
            for test, message in (cell.tests.failed if cell.tests else {}).items():
                screen.line(f"  {cell.patch} {cell.version}: {test}: {message}")


def _runs(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    order = versions_of(cells)
    for patch in patches_of(cells):
        row = sorted((cell for cell in cells if cell.patch == patch), key=lambda cell: order.index(cell.version))
        for _, run in groupby(row, key=lambda cell: (cell.state, "" if _good(cell) else _counted(cell))):
            yield list(run)


def _good(cell: Cell) -> bool:
    return cell.state in ("pending", "applied")


def _counted(cell: Cell) -> str:
    return counted(hunk for edit in cell.edits for hunk in edit.hunks)


def _why(cell: Cell, screen: Screen) -> None:
    for reason in cell.reasons[:_MOST_REASONS]:
        screen.line(f"  {cell.patch} {cell.version}: {reason}")
    if len(cell.reasons) > _MOST_REASONS:
        screen.line(f"  {cell.patch} {cell.version}: and {len(cell.reasons) - _MOST_REASONS} more reasons (--json)")
    for edit in cell.edits:
        if not edit.moved:
            continue
        screen.line(f"    {edit.id}: {since(edit)}")
        shown: list[str] = []
        for move in edit.moved[:_MOST_REASONS]:
            screen.line(f"      {move.hunk} was {move.was or 'elsewhere'}")
            for line in move.diff if move.diff != shown else []:
                screen.line(f"        {line}")
            shown = move.diff


def _span(run: Sequence[Cell]) -> str:
    first, last = run[0].version, run[-1].version
    return first if first == last else f"{first} to {last} ({len(run)})"


def _tests(run: Sequence[Cell]) -> str:
    ran = [cell.tests for cell in run if cell.tests]
    if not ran:
        return "-"
    failed = sum(bool(tests.failed) for tests in ran)
    return f"failed on {failed} of {len(ran)}" if failed else f"passed on {len(ran)}"
