"""What planning found before for the same edits and the same text, kept in the cache so that nothing is parsed twice.

Only answers are kept, under a name made of everything that they follow from: the edits, the text, this package's own
code, libcst's version and the Python that runs. The proof of a finished image, layer or folder never asks here.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

import msgspec

from graftwork.trees.cache import Cache

T = TypeVar("T")
SWITCH = "GRAFTWORK_MEMO"
_KIND = "plans"
_active: ContextVar[Cache | None] = ContextVar("memo", default=None)


@contextlib.contextmanager
def remembering(cache: Cache) -> Iterator[None]:
    """Keep and use answers in *cache* within the block; not at all with ``GRAFTWORK_MEMO=off``."""
    token = _active.set(None if os.environ.get(SWITCH) == "off" else cache)
    try:
        yield
    finally:
        _active.reset(token)


def recalled(question: object, texts: Iterable[bytes | None], kind: type[T], answer: Callable[[], T]) -> T:
    """*answer*'s value, or the one that it gave before for the same *question* (catalog structs) and *texts*.

    A kept answer that is spoiled is a miss. CacheError where the cache cannot be written.
    """
    cache = _active.get()
    if cache is None:
        return answer()
    key = _key(question, texts)
    kept = cache.recall(_KIND, key)
    if kept is not None:
        return msgspec.msgpack.decode(kept, type=kind)
    value = answer()
    cache.keep(_KIND, key, msgspec.msgpack.encode(value))
    return value


def _key(question: object, texts: Iterable[bytes | None]) -> str:
    state = hashlib.sha256(_code())
    for part in (msgspec.msgpack.encode(question), *texts):
        state.update(b"-" if part is None else f"{len(part)}:".encode() + part)
    return state.hexdigest()


@functools.cache
def _code() -> bytes:
    """A digest of the code that answers: this package, libcst, the Python version (its grammar)."""
    from importlib.metadata import version

    state = hashlib.sha256(f"{sys.version_info[:2]} libcst {version('libcst')}".encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        state.update(file.read_bytes())
    return state.digest()
