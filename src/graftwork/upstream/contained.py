"""Whether a tree holds a change, decided on its text: never on a title, a tag or a merge date."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from packaging.version import Version

from graftwork.catalog.seen import Contained
from graftwork.names import RelPath
from graftwork.trees.tree import Tree
from graftwork.upstream.changes import Change, lines_of, occurrences, telling

Verdict = Literal["present", "partly", "absent", "unknown"]


@dataclass(frozen=True)
class Held:
    """How many places of a change a tree has with it (``new``), without it (``old``), or in neither way (``other``)."""

    new: int
    old: int
    other: int

    @property
    def verdict(self) -> Verdict:
        """``present`` needs no place without the change; places that later changes rewrote do not count against it."""
        if self.new and not self.old and 2 * self.new >= self.new + self.other:
            return "present"
        if self.new:
            return "partly"
        return "absent" if self.old else "unknown"

    @property
    def words(self) -> str:
        """The count, for people."""
        return f"{self.new} of {self.new + self.old + self.other} places"


def held(changes: Sequence[Change], tree: Tree) -> Held:
    """Look at each place of *changes* in *tree*; reads only the files that they touch."""
    texts: dict[str, list[str]] = {}
    counts = {"new": 0, "old": 0, "other": 0}
    for change in changes:
        if change.file not in texts:
            path = RelPath(change.file)
            texts[change.file] = lines_of(tree.read(path)) if tree.exists(path) else []
        counts[_side(change, texts[change.file])] += 1
    return Held(**counts)


def _side(change: Change, text: Sequence[str]) -> str:
    """Which side of a place stands in *text*: with the lines around it, or by its own lines where they are telling."""
    if not text and not change.old:
        return "old"  # the file that the change adds is not there
    new = _stands(change.new, change.added, text)
    old = _stands(change.old, change.removed, text)
    if new and old and occurrences(change.old, change.new):
        old = False  # at the edge of a file one side is a part of the other: the longer one tells
    elif new and old and occurrences(change.new, change.old):
        new = False
    return "other" if new == old else "new" if new else "old"


def _stands(block: Sequence[str], own: Sequence[str], text: Sequence[str]) -> bool:
    if (own or telling(block)) and occurrences(block, text):
        return True
    return telling(own) and bool(occurrences(own, text))


def summary(ref: str, verdicts: Mapping[Version, tuple[Verdict, str]], as_of: str, method: str) -> Contained:
    """The verdicts of all releases as evidence: first release, and where it went again or only half came."""
    rows: dict[str, list[str]] = {"present": [], "partly": [], "absent": [], "unknown": []}
    notes = []
    for version in sorted(verdicts):
        verdict, words = verdicts[version]
        rows[verdict].append(str(version))
        if words:
            notes.append(f"{version}: {words}")
    first = rows["present"][0] if rows["present"] else ""
    return Contained(ref=ref, as_of=as_of, method=method, first=first, note="; ".join(notes), **rows)


def decide(
    ref: str, changes: Sequence[Change], opaque: Sequence[str], trees: Iterable[tuple[Version, Tree]], as_of: str
) -> Contained:
    """*ref* on the trees of releases."""
    verdicts: dict[Version, tuple[Verdict, str]] = {}
    for version, tree in trees:
        found = held(changes, tree)
        verdicts[version] = (found.verdict, found.words if found.verdict == "partly" else "")
    method = f"its {len(changes)} changed places in the releases' wheels"
    if opaque:
        method += f"; no text for {', '.join(opaque)}"
    return summary(ref, verdicts, as_of, method)
