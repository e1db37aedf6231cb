"""Cutting edits from a file before and after a change: each anchor unique, minimal, and scoped to its function."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import msgspec

from graftwork.catalog.patches import Anchor, AnchorHunk
from graftwork.errors import TreeError, UsageError
from graftwork.patching import anchors, regions
from graftwork.patching.anchors import Span
from graftwork.patching.hunks import HunkState


@dataclass(frozen=True)
class Group:
    """Lines ``[old, old_end)`` that became lines ``[new, new_end)``, 0-based."""

    old: int
    old_end: int
    new: int
    new_end: int


@dataclass(frozen=True)
class Part:
    """A scope as lines ``[start, end)`` of a text, 0-based; the whole text has the empty name."""

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class Cut:
    """One hunk: the changed lines with the context that makes them unique in *scope*."""

    scope: str
    window: Group
    hunk: AnchorHunk


class Text:
    """A text as lines, and the scopes that it defines exactly once (none if it is not Python)."""

    def __init__(self, path: str, text: str) -> None:
        self.text, self.lines = text, regions.lines_of(text)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))
        self.scopes: dict[str, Part] = {"": Part("", 0, len(self.lines))}
        if path.endswith(".py"):
            found = list(regions.definitions(regions.parsed(text, path)))
            count = Counter(name for name, _, _ in found)
            for name, node, _ in found:
                if count[name] == 1:
                    first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
                    self.scopes[name] = Part(name, first - 1, node.end_lineno or node.lineno)

    def span(self, part: Part) -> Span:
        return Span(self.starts[part.start], self.starts[part.end])

    def slice(self, start: int, end: int) -> str:
        return self.text[self.starts[start] : self.starts[end]]


def groups(old: Text, new: Text) -> list[Group]:
    """The changed runs of lines, in order."""
    matcher = difflib.SequenceMatcher(None, old.lines, new.lines, autojunk=False)
    found = [Group(i, k, j, m) for tag, i, k, j, m in matcher.get_opcodes() if tag != "equal"]
    ends = [group.old for group in found[1:]] + [len(old.lines)]
    return [_slid(group, old, new, end) for group, end in zip(found, ends, strict=True)]


def _slid(group: Group, old: Text, new: Text, end: int) -> Group:
    """An insertion that begins with a blank line and stands above one, put behind that one: it ends with it then."""
    while (
        group.old == group.old_end < end
        and not new.lines[group.new].strip()
        and new.lines[group.new] == old.lines[group.old]
    ):
        group = Group(group.old + 1, group.old + 1, group.new + 1, group.new_end + 1)
    return group


def cut(path: str, old: str, new: str, name: str = "") -> list[Anchor]:
    """Edits that turn *old* into *new* and tell one from the other, both ways; *name* begins their ids.

    UsageError where exact text cannot say it: an empty file that gets text, or a file that loses all of it.
    """
    if not old or not new:
        what = "is empty and would get text" if not old else "would be emptied"
        raise UsageError(f"{path}: {what}: there is no text to anchor at", hint="add a new file instead")
    before, after = Text(path, old), Text(path, new)
    for scoped in (True, False):
        edits = _edits(path, _cuts(path, before, after, scoped), name)
        if holds(edits, old, new):
            return edits
    raise UsageError(f"{path}: the change cannot be cut into anchors that hold both ways", hint="use a diff edit")


def _cuts(path: str, old: Text, new: Text, scoped: bool) -> list[Cut]:
    """One cut for each run of changed lines; runs whose windows meet are one."""
    wanted = groups(old, new)
    while True:
        cuts = [_narrowest(path, old, new, group, scoped) for group in wanted]
        joined = _joined(wanted, cuts)
        if len(joined) == len(wanted):
            return cuts
        wanted = joined


def cut_all(changes: Mapping[str, tuple[str, str]]) -> list[Anchor]:
    """The edits of several files (path -> before and after), each with an id of its own."""
    edits: list[Anchor] = []
    for path, (old, new) in changes.items():
        for edit in cut(path, old, new):
            taken = {other.id for other in edits}
            stem = _slug(f"{PurePosixPath(path).stem}-{edit.id}") if edit.id in taken else edit.id
            names = (stem if number == 1 else f"{stem}-{number}" for number in range(1, len(taken) + 3))
            edits.append(msgspec.structs.replace(edit, id=next(name for name in names if name not in taken)))
    return edits


def holds(edits: Sequence[Anchor], old: str, new: str) -> bool:
    """Whether *edits* are pending in *old*, make *new* of it, are done there, and lead back."""
    text = old
    try:
        for edit in edits:
            if any(hunk.state is not HunkState.PENDING for hunk in anchors.examine(edit, text)):
                return False
            text = anchors.forward(edit, text)
        if text != new:
            return False
        for edit in reversed(edits):
            if any(hunk.state is not HunkState.DONE for hunk in anchors.examine(edit, text)):
                return False
            text = anchors.backward(edit, text)
    except TreeError:
        return False  # between two edits the text is no Python, so that no scope can be found in it
    return text == old


def _narrowest(path: str, old: Text, new: Text, group: Group, scoped: bool) -> Cut:
    """The cut of one group in the innermost scope that can tell it apart; the whole file always can."""
    for scope in _around(old, new, group) if scoped else [""]:
        found = _unique(path, old, new, group, scope)
        if found:
            return found
    whole = Group(0, len(old.lines), 0, len(new.lines))
    return Cut("", whole, AnchorHunk(find=old.text, replace=new.text))


def _around(old: Text, new: Text, group: Group) -> list[str]:
    """The scopes that hold the group in both texts, innermost first."""
    found = []
    for name, part in old.scopes.items():
        after = new.scopes.get(name)
        # An insertion needs a neighbour in the scope; at its end the line above, at its start the line below.
        first, last = (group.old, group.old_end) if group.old < group.old_end else (group.old, group.old)
        inside = part.start <= first and last <= part.end and part.start < part.end
        if after and inside and after.start <= group.new and group.new_end <= after.end:
            found.append((part.end - part.start, name))
    return [name for _, name in sorted(found, key=lambda item: (item[0], item[1] == ""))]


def _unique(path: str, old: Text, new: Text, group: Group, scope: str) -> Cut | None:
    """The group with as little context as makes it unique in the scope, before and after."""
    was, now = old.scopes[scope], new.scopes[scope]
    above = below = 0
    room_above = min(group.old - was.start, group.new - now.start)
    room_below = min(was.end - group.old_end, now.end - group.new_end)
    while True:
        window = Group(group.old - above, group.old_end + below, group.new - above, group.new_end + below)
        find, replace = old.slice(window.old, window.old_end), new.slice(window.new, window.new_end)
        if find.strip() and replace.strip():
            state, _, _ = anchors.state_of(find, replace, old.text, path, old.span(was))
            after, _, _ = anchors.state_of(find, replace, new.text, path, new.span(now))
            if state is HunkState.PENDING and after is HunkState.DONE:
                return Cut(scope, window, AnchorHunk(find=find, replace=replace))
        if above == room_above and below == room_below:
            return None
        if below == room_below or (above <= below and above < room_above):
            above += 1
        else:
            below += 1


def _joined(wanted: Sequence[Group], cuts: Sequence[Cut]) -> list[Group]:
    """*wanted* with those joined whose windows share lines: each must be found before and after the other."""
    result: list[tuple[Group, Group]] = []
    for group, item in zip(wanted, cuts, strict=True):
        window = item.window
        while result and result[-1][1].old_end > window.old:
            first, reach = result.pop()
            group = Group(first.old, group.old_end, first.new, group.new_end)
            window = Group(min(reach.old, window.old), window.old_end, min(reach.new, window.new), window.new_end)
        result.append((group, window))
    return [group for group, _ in result]


def _edits(path: str, cuts: Sequence[Cut], name: str) -> list[Anchor]:
    """One edit for each scope, with an id made of the scope's name."""
    by_scope: dict[str, list[AnchorHunk]] = {}
    for item in cuts:
        by_scope.setdefault(item.scope, []).append(item.hunk)
    edits: list[Anchor] = []
    for scope, hunks in by_scope.items():
        slug = _slug(name or scope.rpartition(".")[2] or PurePosixPath(path).stem)
        number = sum(edit.id == slug or edit.id.startswith(f"{slug}-") for edit in edits)
        edits.append(Anchor(id=f"{slug}-{number + 1}" if number else slug, file=path, scope=scope, hunk=hunks))
    return edits


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "edit"
