"""What was found before for the same edits and the same text, kept in the cache so that nothing is worked out twice.

Only answers are kept, under a name made of everything that they follow from: the edits, the text, the code that
answers, its libraries' versions and the Python that runs. The proof of an image, layer or folder never asks here.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

import msgspec

from graftwork.trees.cache import Cache

T = TypeVar("T")
SWITCH = "GRAFTWORK_MEMO"
_active: ContextVar[Cache | None] = ContextVar("memo", default=None)


@contextlib.contextmanager
def remembering(cache: Cache) -> Iterator[None]:
    """Keep and use answers in *cache* within the block; not at all with ``GRAFTWORK_MEMO=off``."""
    token = _active.set(None if os.environ.get(SWITCH) == "off" else cache)
    try:
        yield
    finally:
        _active.reset(token)


def recalled(
    question: object,
    texts: Iterable[bytes | None],
    kind: type[T],
    answer: Callable[[], T],
    *,
    among: str = "plans",
    code: Callable[[], bytes] | None = None,
) -> T:
    """*answer*'s value, or the one that it gave before for the same *question* (catalog structs) and *texts*.

    *among* names the answers of one sort, *code* digests what gives them (None: planning). A kept answer that is
    spoiled is a miss. CacheError where the cache cannot be written.
    """
    cache = _active.get()
    if cache is None:
        return answer()
    key = _key((code or _code)(), question, texts)
    kept = cache.recall(among, key)
    if kept is not None:
        return msgspec.msgpack.decode(kept, type=kind)
    value = answer()
    cache.keep(among, key, msgspec.msgpack.encode(value))
    return value


def digest_of(folders: Sequence[Path], *libraries: str) -> bytes:
    """A digest of code that answers: the modules in *folders*, installed *libraries* by version, Python's version."""
    from importlib.metadata import version

    state = hashlib.sha256(f"{sys.version_info[:2]} {[(name, version(name)) for name in libraries]}".encode())
    for folder in folders:
        for file in sorted(folder.glob("*.py")):
            state.update(file.read_bytes())
    return state.digest()


def _key(code: bytes, question: object, texts: Iterable[bytes | None]) -> str:
    state = hashlib.sha256(code)
    for part in (msgspec.msgpack.encode(question), *texts):
        state.update(b"-" if part is None else f"{len(part)}:".encode() + part)
    return state.hexdigest()


@functools.cache
def _code() -> bytes:
    """Planning: this package and libcst."""
    return digest_of([Path(__file__).parent], "libcst")
