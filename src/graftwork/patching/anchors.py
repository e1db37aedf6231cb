"""Exact text: an anchor that occurs once, and its replacement. A diff hunk is an anchor of whole lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graftwork.catalog.patches import Anchor, AnchorHunk
from graftwork.patching import drift, regions
from graftwork.patching.hunks import Hunk, HunkState, counted


@dataclass(frozen=True)
class Span:
    """The part of a text that an anchor may stand in: ``[start, end)`` in characters."""

    start: int
    end: int


def examine(edit: Anchor, text: str | None) -> list[Hunk]:
    """The state of each hunk of *edit* in *text* (None: the file is missing)."""
    if text is None:
        return [Hunk.missing(edit, i, h.find, "the file does not exist") for i, h in enumerate(edit.hunk)]
    spans = _spans(edit, text)
    if len(spans) != 1:
        state = HunkState.AMBIGUOUS if spans else HunkState.MISSING
        detail = f"{edit.scope} is defined {len(spans)} times in {edit.file}"
        detail = detail if spans else drift.no_scope(edit.file, edit.scope, text)
        return [Hunk(edit.id, i, edit.file, state, h.find, detail) for i, h in enumerate(edit.hunk)]
    return [
        Hunk(edit.id, i, edit.file, *state_of(h.find, h.replace, text, edit.file, spans[0]))
        for i, h in enumerate(edit.hunk)
    ]


def rewrite(edit: Anchor, text: str, hunks: Sequence[AnchorHunk]) -> str:
    """*text* with each hunk's ``find`` replaced; the caller has seen that each occurs once."""
    (span,) = _spans(edit, text)
    end = span.end
    for hunk in hunks:  # the scope is not looked up in between: half of an edit need not be Python
        at = text.index(hunk.find, span.start, end)
        text = text[:at] + hunk.replace + text[at + len(hunk.find) :]
        end += len(hunk.replace) - len(hunk.find)
    return text


def forward(edit: Anchor, text: str) -> str:
    """*text* with all hunks applied."""
    return rewrite(edit, text, edit.hunk)


def backward(edit: Anchor, text: str) -> str:
    """*text* with all hunks taken out again."""
    swapped = [AnchorHunk(find=h.replace, replace=h.find) for h in reversed(edit.hunk)]
    return rewrite(edit, text, swapped)


def state_of(find: str, replace: str, text: str, file: str, span: Span | None = None) -> tuple[HunkState, str, str]:
    """(state, anchor, detail) of one exact replacement in *text*.

    Where one text holds the other (an insertion keeps its anchor), the longer one is looked for first.
    """
    span = span or Span(0, len(text))
    anchors, results = _positions(find, text, span), _positions(replace, text, span) if replace else []
    if find in replace:
        anchors = [at for at in anchors if not any(r <= at < r + len(replace) for r in results)]
    elif replace and replace in find:
        results = [at for at in results if not any(a <= at < a + len(find) for a in anchors)]
    state = counted(len(anchors), len(results))
    if state is HunkState.MISSING:
        return state, find, drift.nearest_lines(find, text, file)
    if state is HunkState.AMBIGUOUS:
        lines = ", ".join(str(text.count("\n", 0, at) + 1) for at in anchors or results)
        return state, find, f"occurs {len(anchors or results)} times in {file} (line {lines})"
    return state, find, ""


def _spans(edit: Anchor, text: str) -> list[Span]:
    if not edit.scope:
        return [Span(0, len(text))]
    lines = regions.lines_of(text)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    found = regions.find(regions.parsed(text, edit.file), text, edit.scope)
    return [Span(starts[region.first - 1], starts[region.last]) for region in found]


def _positions(find: str, text: str, span: Span) -> list[int]:
    """Every place where *find* starts, overlapping ones too."""
    found = []
    at = text.find(find, span.start, span.end)
    while at >= 0:
        found.append(at)
        at = text.find(find, at + 1, span.end)
    return found
