"""What one rank's cache holds, in a router's own block keys, so that a prompt can be matched against it."""

from __future__ import annotations

import hashlib
import logging
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from graftwork.launch.kvevents.wire import Cleared, HashId, Removed, Stored

logger = logging.getLogger(__name__)

Key = bytes
KeyOf = Callable[[Key, Sequence[int], bytes], Key]

# Groups whose blocks a prompt can be matched with; an engine that says no kind has only such (vLLM's KVCacheSpecKind).
MATCHED_KINDS = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})


@dataclass
class Counters:
    """What became of what was received. A view that stays empty raises no error anywhere: alert on ``applied`` 0.

    Events: ``applied``, ``orphaned`` (their parent is not known), ``rejected`` (malformed), ``unknown`` (tag),
    ``ignored`` (attention that no prompt can be matched with). Blocks: ``indexed``, ``unmapped`` (indexed, but
    the engine gave another number of hashes: they can only be cleared), ``forgotten`` (removed, but not known here).
    Messages: ``messages``, ``decode_failed``, ``missed``; ``restarts`` of the publisher; ``replayed``.
    """

    messages: int = 0
    applied: int = 0
    indexed: int = 0
    orphaned: int = 0
    rejected: int = 0
    unknown: int = 0
    ignored: int = 0
    unmapped: int = 0
    forgotten: int = 0
    decode_failed: int = 0
    missed: int = 0
    replayed: int = 0
    restarts: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)

    @property
    def silent(self) -> bool:
        """Messages came and nothing could be applied: the view is empty although the cache is not."""
        return self.messages > 0 and self.applied == 0


def block_key(parent: Key, tokens: Sequence[int], extra: bytes = b"") -> Key:
    """The 8-byte key of a block of *tokens* (u32) below *parent*; *extra* is what else distinguishes it."""
    packed = struct.pack(f"<{len(tokens)}I", *tokens)
    return hashlib.blake2b(parent + packed + extra, digest_size=8).digest()


def root_key(lora: str | None) -> Key:
    """The parent of a first block: prompts under different adapters never share a block."""
    return b"" if lora is None else hashlib.blake2b(lora.encode(), digest_size=8).digest()


class RankView:
    """The blocks that one rank holds. *block_size* (tokens) is the resolved one that the engine was registered with.

    A block that is on several media stays until it has left them all.
    """

    def __init__(
        self, counters: Counters | None = None, block_size: int | None = None, key_of: KeyOf = block_key
    ) -> None:
        self.counters = Counters() if counters is None else counters
        self.block_size = block_size
        self._key_of = key_of
        self._keys: dict[HashId, Key] = {}
        self._places: dict[HashId, set[tuple[str, int | None]]] = {}
        self._held: Counter[Key] = Counter()
        self._other_groups: set[int] = set()
        self._warned = False

    def __len__(self) -> int:
        """How many different blocks are held."""
        return len(self._held)

    def keys(self) -> frozenset[Key]:
        return frozenset(self._held)

    def match(self, tokens: Sequence[int], lora: str | None = None) -> int:
        """How many leading whole blocks of a prompt are held. 0 before the block size is known.

        Under EAGLE the engine needs one token past a block, so this says at most one block too many.
        """
        size = self.block_size
        if size is None:
            return 0
        key, held = root_key(lora), 0
        for start in range(0, len(tokens) - size + 1, size):
            key = self._key_of(key, tokens[start : start + size], b"")
            if key not in self._held:
                break
            held += 1
        return held

    def apply(self, event: Stored | Removed | Cleared) -> None:
        """Take one checked event over, whole or not at all."""
        if isinstance(event, Cleared):
            self.clear()
            self.counters.applied += 1
        elif isinstance(event, Removed):
            self._remove(event)
        else:
            self._store(event)

    def clear(self) -> None:
        """Forget all blocks; groups and the block size stay known."""
        self._keys.clear()
        self._places.clear()
        self._held.clear()

    def _store(self, event: Stored) -> None:
        if event.kind not in MATCHED_KINDS:
            if event.group is not None:
                self._other_groups.add(event.group)
            self.counters.ignored += 1
            return
        if event.parent is None:
            parent = root_key(event.lora)
        elif event.parent in self._keys:
            parent = self._keys[event.parent]
        else:
            self.counters.orphaned += 1
            return
        self._check_size(event.block_size)
        keys = self._chain(event, parent)
        self.counters.applied += 1
        self.counters.indexed += len(keys)
        if len(keys) != len(event.hashes):
            self._held.update(keys)
            self.counters.unmapped += len(keys)
            return
        for name, key in zip(event.hashes, keys, strict=True):
            self._place(name, key, (event.medium, event.group))

    def _chain(self, event: Stored, parent: Key) -> list[Key]:
        """The keys of the event's whole blocks; tokens of a last partial block are left out."""
        keys = []
        for number in range(len(event.tokens) // event.block_size):
            tokens = event.tokens[number * event.block_size : (number + 1) * event.block_size]
            parent = self._key_of(parent, tokens, _salt(event, number))
            keys.append(parent)
        return keys

    def _place(self, name: HashId, key: Key, place: tuple[str, int | None]) -> None:
        if self._keys.get(name, key) != key:
            self._forget(name)
        if name not in self._keys:
            self._keys[name] = key
            self._places[name] = set()
            self._held[key] += 1
        self._places[name].add(place)

    def _remove(self, event: Removed) -> None:
        if event.group is not None and event.group in self._other_groups:
            self.counters.ignored += 1
            return
        for name in event.hashes:
            places = self._places.get(name)
            if places is None:
                self.counters.forgotten += 1
                continue
            gone = {p for p in places if event.medium in (None, p[0]) and event.group in (None, p[1])}
            places -= gone
            if not places:
                self._forget(name)
        self.counters.applied += 1

    def _forget(self, name: HashId) -> None:
        key = self._keys.pop(name)
        del self._places[name]
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]

    def _check_size(self, size: int) -> None:
        if self.block_size is None:
            self.block_size = size
        elif self.block_size != size and not self._warned:
            self._warned = True
            logger.warning(
                "KV events have blocks of %d tokens, this rank was registered with %d: none of them will match; "
                "register the size that the engine resolved, not the one that was asked for",
                size,
                self.block_size,
            )


def _salt(event: Stored, number: int) -> bytes:
    """What else the engine hashed into a block (media, cache salt), so that a plain prompt does not match it."""
    extra = event.extra[number] if number < len(event.extra) else None
    rest = [part for part in extra or () if part != event.lora]
    return repr(rest).encode() if rest else b""
