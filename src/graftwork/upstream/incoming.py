"""A change as it comes: a diff, or a pull request's mail. It is applied to a tree exactly, or not at all."""

from __future__ import annotations

import email
import email.policy
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from graftwork.errors import ObsoleteError, StateError, UsageError
from graftwork.names import rel_path
from graftwork.patching import drift
from graftwork.patching.overlay import Overlay
from graftwork.upstream.changes import in_package

if TYPE_CHECKING:
    from unidiff import PatchedFile  # type: ignore[attr-defined, unused-ignore]

_TAGS = re.compile(r"^(?:\[[^\]]*\]\s*)+")
_NUMBER = re.compile(r"\s*\(#(\d+)\)\s*$")


@dataclass(frozen=True)
class _Hunk:
    """Old and new lines, line ends included; *line* is where the old ones stood, 1-based."""

    line: int
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True)
class _File:
    path: str
    hunks: tuple[_Hunk, ...]
    added: bool


@dataclass(frozen=True)
class Incoming:
    """A parsed change. ``left_out`` are its files outside the engine's package; ``number`` that of a squashed merge."""

    origin: str
    files: tuple[_File, ...]
    left_out: tuple[str, ...]
    title: str = ""
    number: int | None = None


def read(file: Path, engine: str) -> Incoming:
    """Parse a unified diff, or a pull request's mail with one or several commits. UsageError for what cannot be used.

    Paths are mapped from upstream's layout (``python/<engine>/``) to the package's.
    """
    from unidiff import PatchSet  # type: ignore[attr-defined, unused-ignore]
    from unidiff.errors import UnidiffParseError

    try:
        text = file.read_bytes().decode("utf-8")
        parsed = PatchSet(text)
    except (OSError, UnicodeDecodeError, UnidiffParseError, ValueError) as error:
        raise UsageError(
            f"{file}: not a unified diff: {error}", hint="make it with git diff, or save it whole"
        ) from None
    title, number = _subject(text)
    files, left_out = [], []
    for item in parsed:
        path = _in_package(item, engine)
        if path is None:
            left_out.append(str(item.path))
        elif len(item) or not _mode_only(item):
            files.append(_file(item, path, file))
    if not files:
        raise UsageError(
            f"{file}: changes no text of {engine} (outside it: {', '.join(left_out) or 'nothing'})",
            hint=f"the paths must begin with python/{engine}/ or {engine}/",
        )
    return Incoming(str(file), tuple(files), tuple(dict.fromkeys(left_out)), title, number)


def apply_to(change: Incoming, over: Overlay) -> None:
    """Put the change into *over*. StateError lists every hunk that does not fit; ObsoleteError if all are there."""
    wrong: list[str] = []
    there: list[str] = []
    for file in change.files:
        if file.added:
            data = "".join(line for hunk in file.hunks for line in hunk.new).encode("utf-8")
            if over.bytes_of(file.path) is None:
                over.put(file.path, data)
            else:
                (there if over.bytes_of(file.path) == data else wrong).append(f"{file.path}: exists already")
            continue
        text = over.text_of(file.path)
        if text is None:
            wrong.append(f"{file.path}: no such file")
            continue
        lines, moved = _lines(text), 0
        for hunk in file.hunks:
            at, problem = _place(hunk, lines, hunk.line - 1 + moved, file.path)
            if at is None:
                (wrong if problem else there).append(problem or f"{file.path}:{hunk.line}: is in the tree already")
                continue
            lines[at : at + len(hunk.old)] = hunk.new
            moved += len(hunk.new) - len(hunk.old)
        over.put(file.path, "".join(lines).encode("utf-8"))
    if there and not over.differing() and not wrong:
        raise ObsoleteError(f"{change.origin}: all of it is in {over.origin}", hint="this release needs no such patch")
    if wrong or there:
        raise StateError(
            f"{change.origin} does not fit {over.origin}: {'; '.join(wrong + there)}; nothing was written",
            hint="give the tree that the diff was made for, or cut the diff for this release",
        )


def _subject(text: str) -> tuple[str, int | None]:
    """The first mail's subject without its tags, and the number that a squashed merge puts behind it."""
    if not text.startswith(("From ", "From:", "Subject:")):
        return "", None
    message = email.message_from_string(text, policy=email.policy.default)
    title = _TAGS.sub("", " ".join(str(message["subject"] or "").split()))
    number = _NUMBER.search(title)
    return _NUMBER.sub("", title), int(number[1]) if number else None


def _in_package(item: PatchedFile, engine: str) -> str | None:
    """The path in the package, or None for a file outside it."""
    named = str(item.source_file if _comes_or_goes(item, "deleted") else item.target_file)
    if named.startswith('"') and f"/{engine}/" in named:
        raise UsageError(f"{named}: git had to quote this name", hint="a patch takes names that need no quotes")
    head, _, rest = named.partition("/")
    for path in (named, rest) if head in ("a", "b") or not _by_git(item) else (named,):
        if inner := in_package(path, engine):
            try:
                return rel_path(inner)
            except ValueError as error:
                raise UsageError(str(error)) from None
    return None


def _comes_or_goes(item: PatchedFile, how: str) -> bool:
    """Whether a file is ``new`` or ``deleted``; the parser also takes a file without text for one."""
    side = item.source_file if how == "new" else item.target_file
    return str(side) == "/dev/null" or bool(re.search(f"^{how} file mode ", str(item.patch_info or ""), re.M))


def _by_git(item: PatchedFile) -> bool:
    return "diff --git " in str(item.patch_info or "")


def _mode_only(item: PatchedFile) -> bool:
    return bool(re.search(r"^new mode ", str(item.patch_info or ""), re.M)) and not item.is_rename


def _file(item: PatchedFile, path: str, source: Path) -> _File:
    copied = re.search(r"^copy from ", str(item.patch_info or ""), re.M)
    wrong = (
        "deletes" if _comes_or_goes(item, "deleted") else "renames" if item.is_rename else "copies" if copied else ""
    )
    binary = item.is_binary_file or "GIT binary patch" in str(item.patch_info or "")
    wrong = "changes bytes that are no text in" if binary else wrong
    if wrong:
        hint = "leave it out of the diff: a patch changes text, and adds text files"
        raise UsageError(f"{source}: {wrong} {path}, which a patch cannot do", hint=hint)
    hunks = tuple(_hunk(hunk, path, source) for hunk in item)
    return _File(path, hunks, _comes_or_goes(item, "new"))


def _hunk(hunk: object, path: str, source: Path) -> _Hunk:
    old: list[str] = []
    new: list[str] = []
    last: tuple[list[str], ...] = ()
    for line in hunk:  # type: ignore[attr-defined]
        if line.line_type == "\\":
            for side in last:
                side[-1] = side[-1].removesuffix("\n")
            continue
        last = {" ": (old, new), "-": (old,), "+": (new,)}[line.line_type]
        for side in last:
            side.append(line.value)
    start = int(hunk.source_start)  # type: ignore[attr-defined]
    if not old and start:
        raise UsageError(f"{source}: {path}: a hunk without context", hint="make the diff with context: git diff -U3")
    return _Hunk(start, tuple(old), tuple(new))


def _place(hunk: _Hunk, lines: list[str], wanted: int, path: str) -> tuple[int | None, str]:
    """Where the old lines stand: at the diff's own line, else where they are the only ones. (None, "") if applied."""
    if not hunk.old and not lines:
        return 0, ""
    found = _occurrences(hunk.old, lines)
    if wanted in found:
        return wanted, ""
    if len(found) == 1:
        return found[0], ""
    if found:
        at = ", ".join(str(line + 1) for line in found)
        return None, f"{path}:{hunk.line}: its lines occur {len(found)} times (line {at})"
    if hunk.new and _occurrences(hunk.new, lines):
        return None, ""
    return None, f"{path}:{hunk.line}: {drift.nearest_lines(''.join(hunk.old), ''.join(lines), path)}"


def _occurrences(part: tuple[str, ...], lines: list[str]) -> list[int]:
    size = len(part)
    return [at for at in range(len(lines) - size + 1) if tuple(lines[at : at + size]) == part] if size else []


def _lines(text: str) -> list[str]:
    """Lines as git counts them: only a newline ends one."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)
