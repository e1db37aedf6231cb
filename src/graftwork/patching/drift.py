"""Why an anchor was not found: the nearest candidate, where it is, and how it differs."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from graftwork.patching import regions

if TYPE_CHECKING:
    from graftwork.patching.scopes import Match, Scope


def no_scope(path: str, scope: str, text: str) -> str:
    """Which definitions have a name like the missing *scope*."""
    names = [name for name, _, _ in regions.definitions(regions.parsed(text, path))]
    last = scope.rpartition(".")[2]
    near = [name for name in names if name.rpartition(".")[2] == last]
    near += [name for name in difflib.get_close_matches(scope, names, 2, 0.7) if name not in near]
    return f"{scope} is not defined in {path}" + (f"; nearest: {', '.join(near[:3])}" if near else "")


def where(matches: Sequence[Match], scope: Scope) -> str:
    """On which lines a pattern matches."""
    lines = ", ".join(str(scope.line_of(match.node)) for match in matches)
    return f"matches {len(matches)} times in {scope.path} (line {lines})"


def nearest_node(snippet: str, kind: type, scope: Scope) -> str:
    """The node of *kind* that looks most like *snippet*."""
    scored = []
    header_only = snippet.endswith(": ...")
    for node in scope.by_kind.get(kind, ()):
        code = scope.module.code_for_node(node)
        code = " ".join((code.partition(":\n")[0] + ": ..." if header_only else code).split())
        scored.append((difflib.SequenceMatcher(None, snippet, code[: 4 * len(snippet)]).ratio(), code, node))
    best = max(scored, key=lambda item: item[0], default=None)
    if best is None or best[0] < 0.4:
        return f"nothing like it in {scope.path}:{scope.region.first}-{scope.region.last}"
    return f"nearest candidate, {scope.path}:{scope.line_of(best[2])}: {best[1][:160]}"


def nearest_lines(find: str, text: str, path: str) -> str:
    """The lines of *text* most like *find*, with what differs."""
    want, have = regions.lines_of(find), regions.lines_of(text)
    key = max(want, key=lambda line: len(line.strip()), default="")
    offset = want.index(key) if want else 0
    close = difflib.get_close_matches(key, sorted(set(have)), n=3, cutoff=0.5)
    scored = []
    for start, line in enumerate(have):
        if line in close and start >= offset:
            there = have[start - offset : start - offset + len(want)]
            scored.append((difflib.SequenceMatcher(None, find, "".join(there)).ratio(), start - offset, there))
    if not scored:
        return f"nothing like it in {path}"
    _, start, there = max(scored, key=lambda item: item[0])
    delta = [line.rstrip("\r\n") for line in difflib.ndiff(want, there) if line[:1] in "+-"]
    return f"nearest candidate, {path}:{start + 1}, differs (- wanted, + there): " + " | ".join(delta[:6])
