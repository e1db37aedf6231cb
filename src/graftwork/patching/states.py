"""The seven states of a patch in a tree, and how hunks and markers decide one."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from graftwork.patching.hunks import Hunk, HunkState


class State(str, Enum):
    """What a patch is in a tree; design.md's table says what each does to a build."""

    PENDING = "pending"
    APPLIED = "applied"
    OUTDATED = "outdated"
    PARTIAL = "partial"
    DRIFTED = "drifted"
    OBSOLETE = "obsolete"
    NOT_NEEDED = "not-needed"


MEANING = {
    State.PENDING: "will be applied",
    State.APPLIED: "already in the tree",
    State.OUTDATED: "an earlier revision of the same patch is in the tree",
    State.PARTIAL: "some edits are in the tree, some are not",
    State.DRIFTED: "an anchor is missing or ambiguous, or the version is not one it was written for",
    State.OBSOLETE: "the defect is fixed upstream",
    State.NOT_NEEDED: "this engine version or platform does not have the defect",
}


def decide(hunks: Sequence[Hunk], markers: Sequence[bool]) -> tuple[State, list[str]]:
    """(state, reasons) of a patch whose earlier revisions are not in the tree.

    *markers* says of each marker of this revision whether the compiled file has it.
    """
    counting = [hunk for hunk in hunks if hunk.state is not HunkState.HOLDS]
    done = [hunk for hunk in counting if hunk.state is HunkState.DONE]
    pending = [hunk for hunk in counting if hunk.state is HunkState.PENDING]
    bad = [hunk for hunk in counting if hunk not in done and hunk not in pending]
    if len(done) == len(counting) and all(markers):
        return State.APPLIED, []
    if len(pending) == len(counting) and not any(markers):
        return State.PENDING, []
    if done or any(markers):
        return State.PARTIAL, _partial(done, pending, bad, markers)
    return State.DRIFTED, [_described(hunk) for hunk in bad]


def _partial(done: list[Hunk], pending: list[Hunk], bad: list[Hunk], markers: Sequence[bool]) -> list[str]:
    reasons = []
    if done:
        reasons.append(f"in the tree: {', '.join(hunk.name for hunk in done)}")
    if pending:
        reasons.append(f"not in the tree: {', '.join(hunk.name for hunk in pending)}")
    reasons += [_described(hunk) for hunk in bad]
    if any(markers) and not done:
        reasons.append("its markers are in the compiled code, but the edits are not: the logic is not the patch's")
    elif not all(markers):
        reasons.append(f"{markers.count(False)} of {len(markers)} markers are missing from the compiled code")
    return reasons


_SAYS = {
    HunkState.MISSING: "anchor not found",
    HunkState.AMBIGUOUS: "anchor is ambiguous",
    HunkState.BOTH: "anchor and result are both present",
    HunkState.BLOCKED: "found what must not be there",
    HunkState.PENDING: "not applied",
    HunkState.DONE: "applied",
    HunkState.HOLDS: "holds",
}


def _described(hunk: Hunk) -> str:
    anchor = " ".join(hunk.anchor.split())
    anchor = anchor if len(anchor) <= 100 else anchor[:97] + "..."
    return f"{hunk.name} {hunk.file}: {_SAYS[hunk.state]}: {anchor}" + (f" [{hunk.detail}]" if hunk.detail else "")
