"""The mutant that only looks like the patch: its markers in dead code, in the right functions of the stock text.

It shows that a marker alone proves nothing, and that the tests judge behaviour: they must fail on it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from types import CodeType

from graftwork.catalog.patches import Marker
from graftwork.patching import check, regions
from graftwork.patching.overlay import Overlay

# Not a constant, so that no compiler drops what stands below it.
_NEVER = "if []:"
_SHAPES = {"local": "{value} = None", "name": "[{value}]", "attribute": "[None.{value}]", "constant": "[{value!r}]"}


def plant(markers: Iterable[Marker], over: Overlay) -> None:
    """Put each marker into dead code of its function in *over*; a function that is missing is made in dead code.

    Raises ValueError if a marker cannot be had without the patch (a ``local`` of the module has no place).
    """
    for marker in markers:
        text = over.text_of(marker.file) or ""
        if not check.has_marker(_compiled(text, marker.file), marker.function, marker.kind, marker.value):
            text = _planted(text, marker)
            if not check.has_marker(_compiled(text, marker.file), marker.function, marker.kind, marker.value):
                raise ValueError(
                    f"marker {marker.kind} {marker.value!r} has no place in dead code of {marker.function}"
                )
            over.put(marker.file, text.encode("utf-8"))


def _compiled(text: str, path: str) -> CodeType:
    return check.compile_source(text.encode("utf-8"), path)


def _planted(text: str, marker: Marker) -> str:
    tree = regions.parsed(text, marker.file)
    dead = [_NEVER, "    " + _SHAPES[marker.kind].format(value=marker.value)]
    parts = [] if marker.function == check.MODULE else [p for p in marker.function.split(".") if p != "<locals>"]
    for count in range(len(parts), 0, -1):
        name = ".".join(parts[:count])
        homes = [node for found, node, _ in regions.definitions(tree) if found == name]
        if homes:
            return _inserted(text, homes[0], _nested(parts[count:], dead))
    newline = _newline(text)
    end = "" if not text or text.endswith(newline) else newline
    return text + end + "".join(f"{line}{newline}" for line in _nested(parts, dead))


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _nested(names: list[str], dead: list[str]) -> list[str]:
    """*dead* inside functions called *names*, outermost first, themselves in dead code."""
    for name in reversed(names):
        dead = [_NEVER, f"    def {name}():", *(f"        {line}" for line in dead)]
    return dead


def _inserted(text: str, home: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, block: list[str]) -> str:
    """*text* with *block* as the first statements of *home*, behind its docstring."""
    lines, newline = list(regions.lines_of(text)), _newline(text)
    body = home.body[1:] if ast.get_docstring(home, clean=False) is not None else home.body
    if not body:  # nothing but a docstring
        last = home.body[0]
        at, indent = last.end_lineno or last.lineno, " " * last.col_offset
        lines.insert(at, "".join(f"{indent}{line}{newline}" for line in block))
        return "".join(lines)
    first = body[0]
    number = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", []))]) - 1
    raw = lines[number].encode("utf-8")
    before, after = raw[: first.col_offset].decode("utf-8"), raw[first.col_offset :].decode("utf-8")
    if not before.strip():
        lines.insert(number, "".join(f"{before}{line}{newline}" for line in block))
        return "".join(lines)
    # The body stands on the line of its header, or behind a docstring and a semicolon.
    indent = " " * (home.col_offset + 4)
    lines[number] = f"{before.rstrip(' ;')}{newline}"
    lines[number] += "".join(f"{indent}{line}{newline}" for line in block) + indent + after
    return "".join(lines)
