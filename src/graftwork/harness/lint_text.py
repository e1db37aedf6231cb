"""Rules for any text of a checkout: comments stay short, and nothing names a person, a cluster or a private place."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

LONGEST = 3  # lines of a comment block

_FOLDERS = ("/home/", "/Users/", "/mnt/", "/nfs/", "/lustre/", "/scratch/", "/gpfs/", "/wekafs/", "/shared_inference/")
_PLACE = re.compile("|".join(rf"(?<![\w.]){re.escape(folder)}[\w.~-]+" for folder in _FOLDERS))
_MAIL = re.compile(r"(?<![\w.+/-])[\w.+-]+@(?:[\w-]+\.)+[a-z]{2,}\b", re.I)
_PUBLIC_MAIL = re.compile(r"@(?:[\w-]+\.)*(?:example(?:\.\w+)?|invalid|test|localhost)$|@users\.noreply\.|^git@", re.I)
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_ADDRESS = re.compile(
    rf"(?<![\w.])(?:10\.{_OCTET}|192\.168|172\.(?:1[6-9]|2\d|3[01]))\.{_OCTET}\.{_OCTET}(?![\w.])", re.ASCII
)
_HOST = re.compile(r"(?<![\w./-])[a-z0-9][\w-]*(?:\.[\w-]+)*\.(?:internal|corp|intra|lan)\b(?!\()", re.I)
_PRIVATE = ((_PLACE, "a private path"), (_ADDRESS, "a private address"), (_HOST, "a private host"))


def comment_blocks(file: Path, text: str) -> Iterator[tuple[int, str]]:
    """(line, message) of every block of more than three comment lines. A Python file is read by its tokens."""
    lines = _python_comments(text) if file.suffix == ".py" else _hash_comments(text)
    start, length = 0, 0
    for line in [*lines, -1]:
        if line == start + length and length:
            length += 1
            continue
        if length > LONGEST:
            yield start, f"a comment of {length} lines, {LONGEST} is the most: longer reasoning goes to a README"
        start, length = line, 1


def private_names(text: str) -> Iterator[tuple[int, str]]:
    """(line, message) of everything that looks like a person's, a cluster's or a private machine's."""
    for number, line in enumerate(text.split("\n"), 1):
        for pattern, what in _PRIVATE:
            yield from ((number, f"{what}: {found[0]}") for found in pattern.finditer(line))
        for found in _MAIL.finditer(line):
            if not _PUBLIC_MAIL.search(found[0]):
                yield number, f"a mail address: {found[0]}"


def _python_comments(text: str) -> list[int]:
    """The lines that hold a comment and nothing else."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return []  # the compiler says it better
    return [
        token.start[0]
        for token in tokens
        if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip()
    ]


def _hash_comments(text: str) -> list[int]:
    lines = enumerate(text.split("\n"), 1)
    return [number for number, line in lines if line.lstrip().startswith("#") and not line.startswith("#!")]
