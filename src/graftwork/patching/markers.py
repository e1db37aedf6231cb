"""Markers of a patch, looked for in the code objects that a tree's source compiles to."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from types import CodeType

from packaging.version import Version

from graftwork.catalog.patches import Marker
from graftwork.catalog.versions import matches
from graftwork.errors import TreeError
from graftwork.patching import regions
from graftwork.patching.check import compile_source, has_marker
from graftwork.patching.overlay import Overlay


def in_force(markers: Sequence[Marker], version: Version) -> list[Marker]:
    """The markers that are meant for *version*."""
    return [marker for marker in markers if matches(marker.versions, version)]


def present(marker: Marker, over: Overlay) -> bool:
    """Whether the marker's function, compiled from the overlay's source, has it. A missing file has none."""
    text = over.text_of(marker.file)
    if text is None or _cannot_be(marker, text):
        return False
    return has_marker(compiled(text, marker.file), marker.function, marker.kind, marker.value)


def where(marker: Marker, over: Overlay) -> list[str]:
    """The functions, defined once, whose own compiled code has the marker's value in its kind; innermost ones only."""
    text = over.text_of(marker.file)
    if text is None or _cannot_be(marker, text):
        return []
    code, tree = compiled(text, marker.file), regions.parsed(text, marker.file)
    names = [name for name, _, _ in regions.definitions(tree)]
    found = [n for n in names if names.count(n) == 1 and has_marker(code, n, marker.kind, marker.value)]
    return [name for name in found if not any(other.startswith(f"{name}.") for other in found)]


def _cannot_be(marker: Marker, text: str) -> bool:
    """A plain ASCII identifier is in compiled code only if it is in the text; this saves compiling a pristine file."""
    plain = marker.value.isidentifier() and marker.value.isascii() and "__" not in marker.value
    return plain and text.isascii() and marker.kind != "constant" and marker.value not in text


@lru_cache(maxsize=16)
def compiled(text: str, path: str) -> CodeType:
    """The module code of *text*; TreeError with the line if this Python cannot compile it."""
    try:
        return compile_source(text.encode("utf-8"), path)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f"{path}:{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else path
        raise TreeError(f"{where}: does not compile: {getattr(error, 'msg', None) or error}") from None
