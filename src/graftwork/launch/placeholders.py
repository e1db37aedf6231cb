"""What is known only on the node: ``{port:NAME}`` and the like, filled in there.

Shipped with a job as it is, so: standard library only, Python 3.8 and newer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

KINDS = ("port", "host", "run", "tmp", "cache", "nics")
_TOKEN = re.compile(r"\{\{|\}\}|\{([a-z]+)(?::([^{}]*))?\}|[{}]")


class PlaceholderError(ValueError):
    """A lone brace, or a placeholder of no known kind; the text is in the message."""


def escape(text: str) -> str:
    """*text* with its braces doubled, so that `fill` gives it back unchanged."""
    return text.replace("{", "{{").replace("}", "}}")


def fill(text: str, look_up: Callable[[str, str], str]) -> str:
    """*text* with each placeholder replaced by ``look_up(kind, name)`` and doubled braces made single.

    ``{port:http}`` asks for ("port", "http"), ``{port:store/rpc}`` for ("port", "store/rpc"), ``{host:1}`` for
    ("host", "1"), ``{run}`` for ("run", ""). PlaceholderError for anything else in braces; errors of *look_up* pass.
    """
    return "".join(literal if kind is None else look_up(kind, name) for literal, kind, name in _tokens(text))


def readable(text: str) -> str:
    """*text* as on the node, but for what is known only there: doubled braces single, placeholders as they are."""
    return fill(text, lambda kind, name: f"{{{kind}:{name}}}" if name else f"{{{kind}}}")


def placeholders(text: str) -> list[tuple[str, str]]:
    """The (kind, name) pairs in *text*, in order. PlaceholderError as in `fill`."""
    return [(kind, name) for _, kind, name in _tokens(text) if kind is not None]


def _tokens(text: str) -> Iterator[tuple[str, str | None, str]]:
    last = 0
    for found in _TOKEN.finditer(text):
        yield text[last : found.start()], None, ""
        last = found.end()
        token, kind, name = found.group(0), found.group(1), found.group(2)
        if token in ("{{", "}}"):
            yield token[0], None, ""
        elif kind in KINDS and (kind in ("port", "host")) == bool(name):
            yield "", kind, name or ""
        else:
            raise PlaceholderError(f"not a placeholder: {token!r} in {text!r}")
    yield text[last:], None, ""
