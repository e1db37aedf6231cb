"""Source bytes as text: strict UTF-8, no guessing, no newline translation."""

from __future__ import annotations

import re

from graftwork.errors import TreeError
from graftwork.names import RelPath
from graftwork.trees.tree import Tree

_BOM = b"\xef\xbb\xbf"
# PEP 263: the declaration must be a comment on line one or two.
_COOKIE = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)", re.ASCII)
_SAME_AS_UTF8 = ("utf-8", "utf8", "ascii", "us-ascii")
_HINT = "graftwork edits UTF-8 text only; save the file as UTF-8, or leave it out of the patch"


def text_of(tree: Tree, path: RelPath) -> str:
    """The file's text with its line endings as they are.

    Raises MissingFile and TreeError as ``tree.read`` does, and TreeError with the byte offset where the
    file is not UTF-8, starts with a byte order mark, holds NUL, or declares another encoding (PEP 263).
    """
    return decode(tree.read(path), f"{path} in {tree.origin}")


def decode(data: bytes, where: str) -> str:
    """*data* as text; TreeError names *where* and the byte offset."""
    if data.startswith(_BOM):
        raise TreeError(f"{where}: starts with a UTF-8 byte order mark (offset 0)", hint="Save it without one.")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TreeError(
            f"{where}: not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}", hint=_HINT
        ) from error
    if (nul := data.find(b"\0")) >= 0:
        raise TreeError(f"{where}: NUL byte at offset {nul}; this is not source text", hint=_HINT)
    for line in data.split(b"\n", 2)[:2]:
        if line.strip() and not line.lstrip().startswith(b"#"):
            break
        cookie = _COOKIE.match(line)
        name = cookie[1].decode("ascii").lower().replace("_", "-") if cookie else "utf-8"
        if name not in _SAME_AS_UTF8:
            raise TreeError(f"{where}: declares the encoding {name!r}, expected UTF-8", hint=_HINT)
    return text
