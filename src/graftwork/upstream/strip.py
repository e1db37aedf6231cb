"""Taking graftwork's marks out of a change, so that what is left is the change alone."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graftwork.catalog.patches import Marker
from graftwork.errors import StateError
from graftwork.patching import regions
from graftwork.patching.markers import compiled

_TAG = re.compile(r"_[a-z0-9]+_(?=[a-z])")


@dataclass(frozen=True)
class Stripped:
    """Texts by path without marks; the marks that were dropped, renamed (old -> new), or kept: names of the change."""

    texts: dict[str, str]
    dropped: tuple[str, ...]
    renamed: dict[str, str]
    kept: tuple[str, ...]


def strip(before: Mapping[str, str], after: Mapping[str, str], markers: Sequence[Marker]) -> Stripped:
    """*after* (path -> text with the patch) without the marks of *markers*; *before* are the files without it.

    A name that nothing reads is dropped with its binding. A marker with ``export`` gets that name. A private local or
    global of ours loses the tag in front (``_p1v2_rows`` -> ``rows``), as do its siblings. All else is kept, and
    every name of a new file.
    StateError where a text cannot be changed; TreeError if the result does not compile.
    """
    texts = dict(after)
    dropped = []
    for marker in markers:
        if marker.kind in ("local", "name") and not marker.export and marker.value not in dropped:
            others = any(marker.value in _words(text) for path, text in texts.items() if path != marker.file)
            without = None if others else _without_binding(marker.file, texts[marker.file], marker.value)
            if without is not None:
                texts[marker.file] = without
                dropped.append(marker.value)
    left = [marker for marker in markers if marker.value not in dropped]
    renamed = _names(left, before, texts)
    for name, to in renamed.items():
        texts = _replaced(texts, name, to)
    for path, text in texts.items():
        if path.endswith(".py"):
            compiled(text, path)
    kept = dict.fromkeys(marker.value for marker in left if marker.value not in renamed)
    return Stripped(texts, tuple(dropped), renamed, tuple(kept))


def _names(markers: Sequence[Marker], before: Mapping[str, str], texts: Mapping[str, str]) -> dict[str, str]:
    """What each name of ours becomes. A name that the engine has already stays."""
    theirs = set().union(*map(_words, before.values()))
    names = {m.value: m.export for m in markers if m.export and m.export != m.value and m.value not in theirs}
    settled = {marker.value for marker in markers if marker.export}
    for value, to in names.items():
        if to.isidentifier() and to in set().union(*(_identifiers(path, text) for path, text in texts.items())):
            raise StateError(f"marker {value}: {to} is in the code already", hint="choose another name for its export")
    for marker in markers:
        tag = _TAG.match(marker.value)
        if tag is None or marker.kind not in ("local", "name") or marker.export or marker.file not in before:
            continue  # a new file is ours, with all its names
        for name in sorted(_words(texts[marker.file])):
            if name.startswith(tag[0]) and name not in theirs | settled | set(names):
                names[name] = _free(name, marker.file, texts, set(names.values()))
    return names


def _free(name: str, path: str, texts: Mapping[str, str], taken: set[str]) -> str:
    """The name without its tag, if no file has that one; a global stays private."""
    rest = _TAG.sub("", name, count=1)
    rest = f"_{rest}" if regions.defined(regions.parsed(texts[path], path), name) else rest
    known = taken.union(*(_identifiers(at, text) for at, text in texts.items()))
    while rest in known or hasattr(builtins, rest):
        rest += "_"
    return rest


def _without_binding(path: str, text: str, name: str) -> str | None:
    """*text* without ``name = constant``, or without *name* in a chain of targets; None where anything reads it."""
    tree = regions.parsed(text, path)
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name]
    bindings = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and set(node.targets) & set(uses)]
    if not uses or any(isinstance(use.ctx, ast.Load) for use in uses) or len(bindings) != len(uses):
        return None
    lines = list(regions.lines_of(text))
    for node in sorted(bindings, key=lambda item: item.lineno, reverse=True):
        first, last = node.lineno - 1, node.end_lineno or node.lineno
        if len(node.targets) == 1:
            if not isinstance(node.value, ast.Constant):
                return None
            del lines[first:last]
            continue
        at = next(number for number, target in enumerate(node.targets) if target in uses)
        target, behind = node.targets[at], [*node.targets, node.value][at + 1]
        if target.lineno != behind.lineno:
            return None
        line = lines[target.lineno - 1].encode("utf-8")
        lines[target.lineno - 1] = (line[: target.col_offset] + line[behind.col_offset :]).decode("utf-8")
    return "".join(lines)


def _replaced(texts: Mapping[str, str], name: str, to: str) -> dict[str, str]:
    """*texts* with an identifier renamed wherever it stands, or with a whole string changed that stands there once."""
    if name.isidentifier():
        return {path: re.sub(rf"\b{name}\b", to, text) for path, text in texts.items()}
    count = sum(text.count(name) for text in texts.values())
    if count != 1:
        hint = "leave export out of the marker, or write the string in one piece"
        raise StateError(f"the marker {name!r} stands {count} times in the change, not once", hint=hint)
    return {path: text.replace(name, to) for path, text in texts.items()}


def _identifiers(path: str, text: str) -> set[str]:
    """Every identifier of the code; the words of comments and strings are none."""
    if not path.endswith(".py"):
        return _words(text)
    found: set[str] = set()
    for node in ast.walk(regions.parsed(text, path)):
        for field in ("id", "attr", "arg", "name", "asname"):
            found |= set(str(getattr(node, field, None)).split("."))
    return found


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))
