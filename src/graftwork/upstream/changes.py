"""What a pull request changes, as places: lines that go, lines that come, and the lines around them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graftwork.errors import TreeError
from graftwork.names import rel_path

_CONTEXT = 3  # lines around a place that tell it from others
_TELLING = 24  # characters that make lines unlikely to occur by chance


@dataclass(frozen=True)
class Change:
    """One run of changed lines in one file of the engine's package; line ends and trailing blanks are left out.

    ``line`` is where ``removed`` begins in the file before the change (1-based), or where ``added`` goes in.
    ``section`` is what git shows as the function around it.
    """

    file: str
    line: int
    before: tuple[str, ...]
    removed: tuple[str, ...]
    added: tuple[str, ...]
    after: tuple[str, ...]
    section: str = ""

    @property
    def old(self) -> tuple[str, ...]:
        """The place without the change."""
        return (*self.before, *self.removed, *self.after)

    @property
    def new(self) -> tuple[str, ...]:
        """The place with the change."""
        return (*self.before, *self.added, *self.after)

    @property
    def lines(self) -> tuple[int, int]:
        """The lines before the change that it touches: those removed, or the two that it goes between."""
        if self.removed:
            return self.line, self.line + len(self.removed) - 1
        return max(self.line - 1, 1), max(self.line, 1)


def in_package(path: str, engine: str) -> str | None:
    """A path of upstream's repository from the package's folder on (at the top or in ``python/``); None outside it."""
    inside = path.removeprefix("python/")
    return inside if inside.startswith(f"{engine}/") else None


def package_path(path: str, engine: str) -> str | None:
    """The same as a sound path: None also where it is none."""
    inside = in_package(path, engine)
    try:
        return rel_path(inside) if inside else None
    except ValueError:
        return None


def from_api(files: Iterable[Mapping[str, Any]], engine: str) -> tuple[list[Change], list[str]]:
    """The changes to *engine*'s package in the API's listing, and its files that have no text to compare.

    ``patch`` is left out by the API for binary files, pure renames and very large diffs; one that cannot be read counts
    the same.
    """
    found: list[Change] = []
    opaque: list[str] = []
    for file in files:
        path = package_path(str(file.get("filename", "")), engine)
        if path is None:
            continue
        changes = _readable(file.get("patch"), path)
        found += changes
        opaque += [] if changes else [path]
    return found, opaque


def _readable(text: object, path: str) -> list[Change]:
    try:
        return parse(f"--- a/{path}\n+++ b/{path}\n{text}\n", path) if isinstance(text, str) else []
    except TreeError:
        return []


def from_diff(text: str, engine: str) -> list[Change]:
    """The changes to *engine*'s package in a whole diff in git's form."""
    found: list[Change] = []
    for part in ("\n" + text).split("\ndiff --git ")[1:]:
        name = next((line[6:] for line in part.splitlines() if line.startswith(("+++ b/", "--- a/"))), "")
        for line in part.splitlines():
            if line.startswith("+++ b/"):
                name = line[6:]
        path = package_path(name.partition("\t")[0], engine)
        at = part.find("\n@@ ")
        if path is not None and at >= 0:
            found += parse(f"--- a/{path}\n+++ b/{path}{part[at:]}\n", path)
    return found


def parse(text: str, path: str) -> list[Change]:
    """The changes of one file's diff. TreeError if it is not one."""
    from unidiff import PatchSet  # type: ignore[attr-defined, unused-ignore]
    from unidiff.errors import UnidiffParseError

    try:
        (file,) = PatchSet(text)
    except (UnidiffParseError, ValueError) as error:
        raise TreeError(f"{path}: upstream's diff cannot be read: {error}") from None
    found: list[Change] = []
    for hunk in file:
        rows = [(row.line_type, row.value.rstrip()) for row in hunk if row.line_type in (" ", "+", "-")]
        found += _runs(path, hunk.source_start, rows, str(hunk.section_header))
    return found


def _runs(path: str, start: int, rows: Sequence[tuple[str, str]], section: str) -> list[Change]:
    """Each run of changed lines of a hunk, with the unchanged lines next to it."""
    found: list[Change] = []
    line, at = max(start, 1), 0
    while at < len(rows):
        if rows[at][0] == " ":
            line, at = line + 1, at + 1
            continue
        end = at
        while end < len(rows) and rows[end][0] != " ":
            end += 1
        removed = tuple(text for kind, text in rows[at:end] if kind == "-")
        added = tuple(text for kind, text in rows[at:end] if kind == "+")
        change = Change(path, line, _unchanged(rows[:at][::-1])[::-1], removed, added, _unchanged(rows[end:]), section)
        found.append(change)
        line, at = line + len(removed), end
    return found


def _unchanged(rows: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    found = []
    for kind, text in rows[:_CONTEXT]:
        if kind != " ":
            break
        found.append(text)
    return tuple(found)


def telling(lines: Sequence[str]) -> bool:
    """Whether *lines* are unlikely to stand somewhere by chance."""
    return sum(len(line.strip()) for line in lines) >= _TELLING


def lines_of(data: bytes) -> list[str]:
    """A file as a change's lines are: UTF-8 or not, without trailing blanks."""
    return [line.rstrip() for line in data.decode("utf-8", "replace").split("\n")]


def occurrences(want: Sequence[str], have: Sequence[str]) -> list[int]:
    """Where *want* stands in *have*, as 0-based positions; nowhere for no lines."""
    if not want:
        return []
    first, size, rows = want[0], len(want), list(want)
    return [at for at, line in enumerate(have) if line == first and list(have[at : at + size]) == rows]
