"""The drift matrix as data: what `graftwork matrix --json` prints and every renderer reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from packaging.version import Version

from graftwork.catalog.patches import Strict
from graftwork.errors import UsageError

StateName = Literal["pending", "applied", "outdated", "partial", "drifted", "obsolete", "not-needed"]
Count = Annotated[int, msgspec.Meta(ge=0)]


class HunkCell(Strict, frozen=True, kw_only=True):
    """One hunk in one release; ``detail`` says what was found instead of the anchor."""

    name: str
    file: str
    state: str
    anchor: str
    detail: str = ""


class Move(Strict, frozen=True, kw_only=True):
    """What became of one hunk's anchor: where it ``was`` in the other release, and the lines that differ around it."""

    hunk: str
    was: str
    now: str
    diff: list[str] = []


class EditCell(Strict, frozen=True, kw_only=True):
    """One edit in one release. ``last_applied`` is the newest older release where it applied, ``first_applied``
    the oldest newer one where there is no older; ``moved`` compares with that release."""

    id: str
    state: str
    hunks: list[HunkCell]
    last_applied: str = ""
    first_applied: str = ""
    moved: list[Move] = []


class OwnTests(Strict, frozen=True, kw_only=True):
    """The patch's own tests on the patched release; ``failed`` maps a test to its message."""

    passed: Count
    skipped: Count
    failed: dict[str, str] = {}
    seconds: float = 0.0


class Cell(Strict, frozen=True, kw_only=True):
    """One patch in one release. ``bytes`` are those moved for it: the sum over all cells is what planning moved.

    What a release costs before its first file (directory, RECORD) is in the first cell that needed it.
    ``trust`` says why the wheel's bytes are believed, see `graftwork.upstream.releases.Release`.
    """

    patch: str
    version: str
    state: StateName
    edits: list[EditCell]
    bytes: Count
    revision: str
    platform: str
    wheel: str
    trust: Literal["lock", "index"]
    reasons: list[str] = []
    tests: OwnTests | None = None


class _Document(Strict, frozen=True, kw_only=True):
    """What ``graftwork matrix --json`` prints; ``error`` where tests failed."""

    cells: list[Cell]
    error: dict[str, str | int] = {}


def as_dict(cells: Sequence[Cell]) -> dict[str, Any]:
    """The JSON document of *cells*, in their order."""
    return {"cells": msgspec.to_builtins(list(cells))}


def load_cells(file: Path) -> list[Cell]:
    """Cells that ``graftwork matrix --json`` wrote to *file*. UsageError when it is something else."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Document).cells
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror})", hint=_HINT) from error
    except msgspec.DecodeError as error:
        raise UsageError(f"{file}: not a matrix: {error}", hint=_HINT) from None


_HINT = "write one with: graftwork matrix --json > FILE"


def counted(hunks: Iterable[HunkCell]) -> str:
    """How many hunks stand as they should, as ``4/5``, without those that only hold; '' if there are no others."""
    states = [hunk.state for hunk in hunks if hunk.state != "holds"]
    return f"{sum(state in ('pending', 'done') for state in states)}/{len(states)}" if states else ""


def since(edit: EditCell) -> str:
    """Which release an edit that moved is compared with."""
    if edit.last_applied:
        return f"what moved since {edit.last_applied}, the last release where it applied"
    return f"how it differs from {edit.first_applied}, the first release where it applies"


def versions_of(cells: Iterable[Cell]) -> list[str]:
    """The releases, oldest first."""
    return sorted({cell.version for cell in cells}, key=Version)


def by_engine(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    """The cells of each engine: releases of one have no place among those of another."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.patch.partition("/")[0], []).append(cell)
    return found


def patches_of(cells: Iterable[Cell]) -> list[str]:
    """The patches, in their first order."""
    return list(dict.fromkeys(cell.patch for cell in cells))
