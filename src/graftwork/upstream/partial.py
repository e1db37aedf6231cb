"""An edit of which some hunks still hold: what stays of it, and new hunks in the gap that the lost ones leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from graftwork.catalog.patches import Anchor, AnchorHunk, Codemod, CodemodHunk, Edit, NewFile
from graftwork.errors import TreeError
from graftwork.patching import edits as editing
from graftwork.patching.hunks import Hunk, HunkState
from graftwork.patching.overlay import Overlay

READY = (HunkState.PENDING, HunkState.HOLDS)
THERE = (HunkState.DONE, HunkState.HOLDS)
Hunked = (Codemod, Anchor)


def remainder(edit: Edit, hunks: Sequence[Hunk], good: tuple[HunkState, ...]) -> Codemod | Anchor | None:
    """*edit* with only those of its *hunks* whose state is *good*; None if that is none, or it cannot be divided."""
    if not isinstance(edit, Hunked) or not any(hunk.state is good[0] for hunk in hunks):
        return None
    kept = [own for own, hunk in zip(edit.hunk, hunks, strict=True) if hunk.state in good]
    return msgspec.structs.replace(edit, hunk=kept)


def mended(lost: Edit, part: Codemod | Anchor, cuts: Sequence[Edit]) -> tuple[Codemod | Anchor, list[Edit]]:
    """*part*, what stays of *lost*, with the cuts of its kind and place in the gap; and the cuts that are left."""
    place = (type(part), part.file, part.scope)
    own = [cut for cut in cuts if isinstance(cut, Hunked) and (type(cut), cut.file, cut.scope) == place]
    before: list[CodemodHunk | AnchorHunk] = [*getattr(lost, "hunk", [])]
    gap = next((at for at, hunk in enumerate(before) if hunk not in part.hunk), len(part.hunk))
    whys = [hunk.why for hunk in before if hunk not in part.hunk]
    new = [hunk for cut in own for hunk in cut.hunk]
    if len(new) != len(whys):
        whys = ["; ".join(dict.fromkeys(filter(None, whys)))] * len(new)
    reasoned = [msgspec.structs.replace(hunk, why=why) for hunk, why in zip(new, whys, strict=True)]
    whole = msgspec.structs.replace(part, hunk=[*part.hunk[:gap], *reasoned, *part.hunk[gap:]])
    return whole, [cut for cut in cuts if cut not in own]


def reason_of(edit: Edit) -> str:
    """Why *edit* is there: its own word, else those of its hunks."""
    return edit.why or "; ".join(dict.fromkeys(hunk.why for hunk in getattr(edit, "hunk", []) if hunk.why))


def compose(edits: Sequence[Edit], folder: Path, base: Overlay, wanted: Overlay, files: Mapping[str, bytes]) -> bool:
    """Whether *edits*, in order, are all ready on *base* and make *wanted* of it. *files* are sources yet unwritten."""
    over = base.copy()
    try:
        for edit in edits:
            if isinstance(edit, NewFile) and edit.source in files:
                over.put(edit.path, files[edit.source])
                continue
            if any(hunk.state not in READY for hunk in editing.examine(edit, folder, over)):
                return False
            editing.forward(edit, folder, over)
    except TreeError:
        return False  # the edits regroup each other's code
    return over.differing() == wanted.differing()
