"""The bare HTML page: escaping, style and frame. No script, nothing loaded from elsewhere."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources

# Control characters have no place in a page, and bidirectional overrides show a text as what it is not.
_ODD = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@cache
def style() -> str:
    """The style sheet, which becomes part of the page."""
    return resources.files("graftwork.upstream").joinpath("report.css").read_text("utf-8")


def esc(value: object) -> str:
    """*value* as text of a page or of a quoted attribute, whatever it holds."""
    return html.escape(_ODD.sub("\ufffd", str(value)), quote=True)


def page(title: str, body: Iterable[str], foot: str) -> str:
    """A whole page; *title* and *foot* are escaped here, the parts of *body* are HTML."""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{esc(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<style>\n{style()}</style>\n</head>\n<body>\n<h1>{esc(title)}</h1>\n"
        + "\n".join(body)
        + f'\n<p class="dim">{esc(foot)}</p>\n</body>\n</html>\n'
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that becomes a list of cards on a narrow screen. *head* is text, the cells of *rows* are HTML."""
    top = "".join(f'<th scope="col">{esc(name)}</th>' for name in head)
    lines = []
    for first, *rest in rows:
        cells = "".join(f'<td data-head="{esc(n)}">{cell}</td>' for n, cell in zip(head[1:], rest, strict=True))
        lines.append(f'<tr><th scope="row">{first}</th>{cells}</tr>')
    return (
        f'<div class="scroll"><table class="cards"><thead><tr>{top}</tr></thead><tbody>\n'
        + "\n".join(lines)
        + "\n</tbody></table></div>"
    )


def listed(items: Iterable[str]) -> str:
    """A list of HTML items; nothing for none."""
    inner = "".join(f"<li>{item}</li>" for item in items)
    return f"<ul>{inner}</ul>" if inner else ""


def anchor(*parts: str) -> str:
    """An id for a place in the page, and the end of a link to it; other parts give another id.

    Patch ids and versions hold no two hyphens in a row, so that two join them without doubt.
    """
    return "--".join(re.sub(r"[^A-Za-z0-9._/+!-]", "-", part) for part in parts)
