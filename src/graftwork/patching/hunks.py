"""One hunk of one edit in one tree: the unit that is counted, reported and proved."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class HunkState(str, Enum):
    """What a hunk's anchor and result say about the tree."""

    PENDING = "pending"
    DONE = "done"
    HOLDS = "holds"
    MISSING = "missing"
    AMBIGUOUS = "ambiguous"
    BOTH = "both"
    BLOCKED = "blocked"


class _OneFile(Protocol):
    """An edit of one file."""

    @property
    def id(self) -> str: ...

    @property
    def file(self) -> str: ...


@dataclass(frozen=True)
class Hunk:
    """A hunk's state; ``anchor`` is what was looked for, ``detail`` what was found instead."""

    edit: str
    index: int
    file: str
    state: HunkState
    anchor: str
    detail: str = ""

    @classmethod
    def missing(cls, edit: _OneFile, index: int, anchor: str, detail: str) -> Hunk:
        return cls(edit.id, index, edit.file, HunkState.MISSING, anchor, detail)

    @property
    def name(self) -> str:
        return f"{self.edit}[{self.index + 1}]"


def counted(anchors: int, results: int) -> HunkState:
    """The state that follows from how often the anchor and the result occur. Both must be unique."""
    if anchors > 1 or results > 1:
        return HunkState.AMBIGUOUS
    if anchors and results:
        return HunkState.BOTH
    if anchors:
        return HunkState.PENDING
    return HunkState.DONE if results else HunkState.MISSING
