"""The four kinds of edit behind one interface: examine, apply and take out again, on an overlay."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from graftwork.catalog.patches import Anchor, Codemod, Diff, Edit, NewFile
from graftwork.patching import anchors, diffs
from graftwork.patching.hunks import Hunk, HunkState
from graftwork.patching.overlay import Overlay


def examine(edit: Edit, folder: Path, over: Overlay) -> list[Hunk]:
    """The state of each hunk of *edit*; reads, changes nothing."""
    if isinstance(edit, Codemod):
        from graftwork.patching import codemod

        return codemod.examine(edit, over.text_of(edit.file))
    if isinstance(edit, Anchor):
        return anchors.examine(edit, over.text_of(edit.file))
    if isinstance(edit, Diff):
        return diffs.examine(edit, folder, over.text_of)
    return _examine_files(edit, folder, over)


def forward(edit: Edit, folder: Path, over: Overlay, *, without: int | None = None) -> None:
    """Put *edit* into the overlay; the caller has seen that all its hunks are pending.

    *without* leaves one hunk out, by its index: to see what notices (``graftwork prove``).
    """
    _change(shortened(edit, without), folder, over, apply=True, without=without)


def shortened(edit: Edit, without: int | None) -> Edit:
    """A codemod or anchor edit without one of its hunks; other kinds as they are."""
    if without is None or not isinstance(edit, (Codemod, Anchor)):
        return edit
    return replace(edit, hunk=[*edit.hunk[:without], *edit.hunk[without + 1 :]])


def backward(edit: Edit, folder: Path, over: Overlay) -> None:
    """Take *edit* out of the overlay; the caller has seen that all its hunks are done."""
    _change(edit, folder, over, apply=False)


def _change(edit: Edit, folder: Path, over: Overlay, apply: bool, without: int | None = None) -> None:
    if isinstance(edit, NewFile):
        for index, (path, data) in enumerate(_sources(edit, folder)):
            if index != without:
                over.put(path, data if apply else None)
        return
    if isinstance(edit, Diff):
        read = over.text_of
        texts = diffs.forward(edit, folder, read, without) if apply else diffs.backward(edit, folder, read)
        for path, text in texts.items():
            over.put(path, text.encode("utf-8"))
        return
    text = over.text_of(edit.file) or ""
    if isinstance(edit, Anchor):
        new = anchors.forward(edit, text) if apply else anchors.backward(edit, text)
    else:
        from graftwork.patching import codemod

        new = codemod.forward(edit, text) if apply else codemod.backward(edit, text)
    over.put(edit.file, new.encode("utf-8"))


def _sources(edit: NewFile, folder: Path) -> list[tuple[str, bytes]]:
    source = folder / edit.source
    if source.is_file():
        return [(edit.path, source.read_bytes())]
    inner = sorted(f for f in source.rglob("*") if f.is_file() and "__pycache__" not in f.parts)
    return [(f"{edit.path}/{file.relative_to(source).as_posix()}", file.read_bytes()) for file in inner]


def _examine_files(edit: NewFile, folder: Path, over: Overlay) -> list[Hunk]:
    found = []
    for index, (path, data) in enumerate(_sources(edit, folder)):
        have = over.bytes_of(path)
        state, detail = HunkState.PENDING, ""
        if have == data:
            state = HunkState.DONE
        elif have is not None:
            state, detail = HunkState.MISSING, f"{path} exists with other contents ({len(have)} bytes)"
        found.append(Hunk(edit.id, index, path, state, f"new file {path}", detail))
    return found
