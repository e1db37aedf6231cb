"""patch.toml changed in place: tables that stay keep their text and their comments, and the result must read back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from graftwork.catalog.patches import PatchFile
from graftwork.catalog.toml import line_of, loads, table_of, toml_text
from graftwork.errors import StateError

_ARRAYS = tuple(field.name for field in msgspec.structs.fields(PatchFile) if "list" in str(field.type))


def rewritten(text: str, old: PatchFile, new: PatchFile) -> str:
    """*text*, which says *old*, so that it says *new*. StateError where the file is written too unusually for that."""
    starts = _starts(text, old)
    lines = text.splitlines(keepends=True)
    first = starts[0][0] if starts else len(lines)
    ends = [start for start, _, _ in starts[1:]] + [len(lines)]
    head = _head("".join(lines[:first]), old, new)
    parts: list[tuple[str, str]] = []
    for (start, name, position), end in zip(starts, ends, strict=True):
        parts.append((f"{name}/{position}", "".join(lines[start:end])))
    done = head + "".join(block for _, block in _blocks(parts, old, new))
    try:
        read = loads(done, PatchFile)
    except ValueError as error:
        raise StateError(f"patch.toml cannot be changed in place: {error}", hint="change it by hand") from None
    if read != new:
        raise StateError("patch.toml cannot be changed in place: it would say something else", hint="change it by hand")
    return done


def _starts(text: str, spec: PatchFile) -> list[tuple[int, str, int]]:
    """(first line, array, position) of every table of an array, comments above it included, in the file's order."""
    lines = text.splitlines()
    found = []
    for name in _ARRAYS:
        rows = getattr(spec, name)
        if not rows or not isinstance(rows[0], msgspec.Struct):
            continue
        for position in range(len(rows)):
            line = (line_of(text, (name, position)) or 1) - 1
            while line and lines[line - 1].startswith("#"):
                line -= 1
            found.append((line, name, position))
    return sorted(found)


def _head(head: str, old: PatchFile, new: PatchFile) -> str:
    """The keys above the first table; only one-line texts are changed."""
    for key in ("revision", "versions", "title"):
        value = getattr(new, key)
        if value == getattr(old, key):
            continue
        line = f"{toml_text({key: value}).strip()}\n"
        if re.search(rf"(?m)^{key}\s*=", head):
            head = re.sub(rf"(?m)^{key}\s*=.*\n", lambda _, line=line: line, head, count=1)  # type: ignore[misc]
        else:
            head = head.rstrip("\n") + "\n" + line + "\n"
    return head


def _blocks(parts: Sequence[tuple[str, str]], old: PatchFile, new: PatchFile) -> list[tuple[str, str]]:
    """The tables of *new*, each array where it stood, in its new order; new arrays at the end."""
    texts = dict(parts)
    done: list[tuple[str, str]] = []
    order = list(dict.fromkeys(key.partition("/")[0] for key, _ in parts))
    for name in [*order, *(name for name in _ARRAYS if name not in order)]:
        rows, known = getattr(new, name), list(getattr(old, name))
        for row in rows:
            if not isinstance(row, msgspec.Struct):
                break
            if row in known:
                position = known.index(row)
                known[position] = None
                block = texts[f"{name}/{position}"]
            else:
                block = _changed(name, row, known, texts)
            if done and not done[-1][1].endswith("\n\n"):
                block = "\n" + block if done[-1][1].endswith("\n") else "\n\n" + block
            done.append((name, block))
    return done


def _changed(name: str, row: msgspec.Struct, known: list[Any], texts: dict[str, str]) -> str:
    """A table that differs from a known one only in a one-line key keeps the rest of its text; others are written."""
    for position, other in enumerate(known):
        if other is None or type(other) is not type(row):
            continue
        differing = [field for field in row.__struct_fields__ if getattr(row, field) != getattr(other, field)]
        if len(differing) == 1 and differing[0] in ("versions", "discriminates", "file", "function", "value"):
            key = differing[0]
            line = toml_text({key: getattr(row, key)})
            block = texts[f"{name}/{position}"]
            body, mark, rest = block.partition(f"[[{name}.")
            if re.search(rf"(?m)^{key}\s*=", body):
                body = re.sub(rf"(?m)^{key}\s*=.*\n?", lambda _, line=line: line, body, count=1)  # type: ignore[misc]
            else:
                body = body.rstrip("\n") + "\n" + line + ("\n" if mark else "")
            known[position] = None
            return body + mark + rest
    return f"[[{name}]]\n{toml_text(table_of(row), name)}"
