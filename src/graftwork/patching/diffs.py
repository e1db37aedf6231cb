"""Unified diffs at fuzz 0: every hunk's old lines must occur exactly once, context included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from graftwork.catalog.patches import Diff
from graftwork.errors import CatalogError
from graftwork.names import rel_path
from graftwork.patching import anchors
from graftwork.patching.hunks import Hunk, HunkState

Read = Callable[[str], "str | None"]


@dataclass(frozen=True)
class DiffHunk:
    """One hunk: the file, the line it was cut at, and the old and new lines as exact text."""

    file: str
    line: int
    old: str
    new: str


@lru_cache(maxsize=64)
def load(source: Path, strip: int) -> tuple[DiffHunk, ...]:
    """Parse a diff strictly. CatalogError for anything but changes inside existing text files."""
    from unidiff import PatchSet  # type: ignore[attr-defined, unused-ignore]
    from unidiff.errors import UnidiffParseError

    try:
        text = source.read_bytes().decode("utf-8")
        patch = PatchSet(text)
    except (OSError, UnicodeDecodeError, UnidiffParseError, ValueError) as error:
        raise CatalogError(source, f"not a unified diff: {error}") from None
    hunks: list[DiffHunk] = []
    for file in patch:
        if file.is_added_file or file.is_removed_file or file.is_rename or file.is_binary_file:
            raise CatalogError(
                source, f"{file.path}: adds, removes or renames a file", hint="use an edit of kind 'file'"
            )
        try:
            path = rel_path("/".join(file.target_file.split("/")[strip:]))
        except ValueError as error:
            raise CatalogError(source, str(error)) from None
        hunks += [_hunk(path, hunk, source) for hunk in file]
    if not hunks:
        raise CatalogError(source, "not a unified diff: it has no hunk")
    return tuple(hunks)


def _hunk(path: str, hunk: object, source: Path) -> DiffHunk:
    old, new = [], []
    for line in hunk:  # type: ignore[attr-defined]
        if line.line_type not in (" ", "+", "-"):
            if line.line_type == "\\":
                raise CatalogError(source, f"{path}: 'no newline at end of file' is not supported")
            continue
        if line.line_type != "+":
            old.append(line.value)
        if line.line_type != "-":
            new.append(line.value)
    if not old or old == new:
        raise CatalogError(source, f"{path}: a hunk without context or without a change")
    return DiffHunk(path, hunk.source_start, "".join(old), "".join(new))  # type: ignore[attr-defined]


def files(edit: Diff, folder: Path) -> list[str]:
    """The tree paths the diff touches, in its order."""
    return list(dict.fromkeys(hunk.file for hunk in load(folder / edit.source, edit.strip)))


def examine(edit: Diff, folder: Path, read: Read) -> list[Hunk]:
    """The state of each hunk of the diff."""
    found = []
    for index, hunk in enumerate(load(folder / edit.source, edit.strip)):
        text = read(hunk.file)
        if text is None:
            found.append(Hunk(edit.id, index, hunk.file, HunkState.MISSING, hunk.old, "the file does not exist"))
            continue
        state, anchor, detail = _state(hunk, text)
        found.append(Hunk(edit.id, index, hunk.file, state, anchor, detail))
    return found


def forward(edit: Diff, folder: Path, read: Read, without: int | None = None) -> dict[str, str]:
    """New text of each touched file; the caller has seen that every hunk is pending. *without* leaves one out."""
    hunks = enumerate(load(folder / edit.source, edit.strip))
    return _rewrite([(h.file, h.old, h.new) for index, h in hunks if index != without], read)


def backward(edit: Diff, folder: Path, read: Read) -> dict[str, str]:
    """Old text of each touched file; the caller has seen that every hunk is done."""
    return _rewrite([(h.file, h.new, h.old) for h in reversed(load(folder / edit.source, edit.strip))], read)


def _state(hunk: DiffHunk, text: str) -> tuple[HunkState, str, str]:
    state, anchor, detail = anchors.state_of("\n" + hunk.old, "\n" + hunk.new, "\n" + text, hunk.file)
    return state, anchor[1:], detail


def _rewrite(changes: list[tuple[str, str, str]], read: Read) -> dict[str, str]:
    texts: dict[str, str] = {}
    for file, old, new in changes:
        text = "\n" + (texts[file] if file in texts else read(file) or "")
        texts[file] = text.replace("\n" + old, "\n" + new, 1)[1:]
    return texts
