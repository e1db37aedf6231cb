"""One payload of KV events, decoded and checked whole: an event is right in every part, or it is `Rejected`.

Sources: ``sglang/srt/disaggregation/kv_events.py`` of SGLang 0.5.15.post1 (events are arrays, the tag first) and
``vllm/distributed/kv_events.py`` of vLLM 0.24.0 (events are maps with the key ``type``), which SGLang 0.5.23 took over.
A batch is the array ``[timestamp, events, rank?]`` in all. The form is seen from the event: one decoder reads both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

HashId = int | bytes
GPU = "GPU"
_U32 = 1 << 32


class MalformedBatch(ValueError):
    """A payload that is no batch of events; nothing of it was used."""


@dataclass(frozen=True)
class Stored:
    """Blocks that were added below *parent*. ``tokens`` is flat (u32); ``pairs`` says that they came as pairs.

    ``hashes`` are the engine's names of the blocks: integers as they came, so that -1 (SGLang) and 2**64 - 1 (vLLM) are
    two names, or bytes. ``extra`` has, for each block, what else went into the engine's hash, or None.
    """

    hashes: tuple[HashId, ...]
    parent: HashId | None
    tokens: tuple[int, ...]
    block_size: int
    medium: str
    pairs: bool = False
    lora: str | None = None
    extra: tuple[tuple[object, ...] | None, ...] = ()
    kind: str | None = None
    group: int | None = None


@dataclass(frozen=True)
class Removed:
    """Blocks that left *medium* (None: the event does not say which, so all of them)."""

    hashes: tuple[HashId, ...]
    medium: str | None
    group: int | None = None


@dataclass(frozen=True)
class Cleared:
    """The rank dropped all its blocks."""


@dataclass(frozen=True)
class Unknown:
    """An event with a tag that this decoder does not know."""

    tag: str


@dataclass(frozen=True)
class Rejected:
    """An event that is malformed, and how."""

    reason: str


Event = Stored | Removed | Cleared | Unknown | Rejected


@dataclass(frozen=True)
class Batch:
    """What one message carried: engine time in seconds since the epoch, the rank if it is said, and the events."""

    timestamp: float
    events: tuple[Event, ...]
    rank: int | None


def decode_batch(payload: bytes) -> Batch:
    """The batch in a msgpack *payload*. MalformedBatch if it is none; a malformed event in it becomes `Rejected`."""
    import msgspec

    try:
        found = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedBatch(f"not msgpack: {error}") from None
    if not isinstance(found, list) or len(found) not in (2, 3):
        raise MalformedBatch("not an array of time, events and rank")
    timestamp, events, rank = [*found, None][:3]
    if not isinstance(timestamp, (int, float)) or not isinstance(events, list):
        raise MalformedBatch("time is no number, or the events are no array")
    if rank is not None and not _natural(rank):
        raise MalformedBatch(f"rank is {rank!r}")
    return Batch(float(timestamp), tuple(_event(event) for event in events), rank)


def _event(found: object) -> Event:
    try:
        if isinstance(found, dict):
            tag, fields = found.get("type"), found
        elif isinstance(found, list) and found:
            tag, fields = found[0], {}
            names = _POSITIONS.get(tag if isinstance(tag, str) else "", ())
            if len(found) - 1 > len(names) and names:
                raise ValueError(f"{tag} has {len(found) - 1} fields, at most {len(names)} are known")
            fields = dict(zip(names, found[1:], strict=False))
        else:
            raise ValueError("an event is an array or a map")
        if not isinstance(tag, str):
            raise ValueError(f"an event's tag is {tag!r}")
        make = _MAKERS.get(tag)
        return make(fields) if make else Unknown(tag)
    except ValueError as error:
        return Rejected(str(error))


_POSITIONS = {
    "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
    "BlockRemoved": ("block_hashes", "medium"),
}


def _stored(fields: Mapping[str, Any]) -> Stored:
    size = fields.get("block_size")
    if not _natural(size) or size == 0:
        raise ValueError(f"block_size is {size!r}")
    tokens, pairs = _tokens(_array(fields, "token_ids"))
    hashes = _hashes(fields)
    parent = fields.get("parent_block_hash")
    lora = fields.get("lora_name")
    return Stored(
        hashes,
        None if parent is None else _hash_id(parent),
        tokens,
        size,
        _text(fields, "medium") or GPU,
        pairs,
        lora if isinstance(lora, str) else _lora_id(fields.get("lora_id")),
        _salted(_extra(fields.get("extra_keys"), len(hashes)), _text(fields, "cache_salt"), len(hashes)),
        _text(fields, "kv_cache_spec_kind"),
        _group(fields),
    )


def _removed(fields: Mapping[str, Any]) -> Removed:
    return Removed(_hashes(fields), _text(fields, "medium"), _group(fields))


_MAKERS: dict[str, Callable[[Mapping[str, Any]], Event]] = {
    "BlockStored": _stored,
    "BlockRemoved": _removed,
    "AllBlocksCleared": lambda _: Cleared(),
}


def _tokens(found: Sequence[object]) -> tuple[tuple[int, ...], bool]:
    """(tokens, whether they came as pairs). Under EAGLE a position is the pair of its token and the next one."""
    pairs = bool(found) and isinstance(found[0], list)
    return tuple(_token(item, pairs) for item in found), pairs


def _token(found: object, pair: bool) -> int:
    if isinstance(found, list) != pair:
        raise ValueError("token_ids mixes tokens and pairs")
    if isinstance(found, list):
        if len(found) != 2 or not all(_natural(token) and token < _U32 for token in found):
            raise ValueError(f"token_ids has the pair {_short(found)}")
        found = found[0]
    if not _natural(found) or found >= _U32:
        raise ValueError(f"token_ids has {_short(found)}")
    return found


def _hashes(fields: Mapping[str, Any]) -> tuple[HashId, ...]:
    return tuple(_hash_id(item) for item in _array(fields, "block_hashes"))


def _hash_id(found: object) -> HashId:
    if isinstance(found, bytes) and found:
        return found
    if isinstance(found, int) and not isinstance(found, bool):
        return found
    raise ValueError(f"a block hash is {_short(found)}")


def _extra(found: object, blocks: int) -> tuple[tuple[object, ...] | None, ...]:
    if found is None:
        return ()
    if not isinstance(found, list) or len(found) != blocks:
        raise ValueError(f"extra_keys has not one entry for each of {blocks} blocks")
    if not all(entry is None or isinstance(entry, list) for entry in found):
        raise ValueError("an entry of extra_keys is no array")
    return tuple(None if entry is None else tuple(entry) for entry in found)


def _salted(
    extra: tuple[tuple[object, ...] | None, ...], salt: str | None, blocks: int
) -> tuple[tuple[object, ...] | None, ...]:
    """*extra* with the salt of the request, which SGLang names apart and vLLM puts in there itself."""
    if salt is None:
        return extra
    return tuple((*(entry or ()), salt) for entry in extra or (None,) * blocks)


def _lora_id(found: object) -> str | None:
    if found is not None and not _natural(found):
        raise ValueError(f"lora_id is {_short(found)}")
    return None if found is None else str(found)


def _group(fields: Mapping[str, Any]) -> int | None:
    found = fields.get("group_idx")
    if found is not None and not _natural(found):
        raise ValueError(f"group_idx is {_short(found)}")
    return found


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    found = fields.get(name)
    if found is not None and not isinstance(found, str):
        raise ValueError(f"{name} is {_short(found)}")
    return found


def _array(fields: Mapping[str, Any], name: str) -> list[object]:
    found = fields.get(name)
    if not isinstance(found, list):
        raise ValueError(f"{name} is no array")
    return found


def _short(found: object) -> str:
    return f"{found!r:.60}"


def _natural(found: object) -> TypeGuard[int]:
    return isinstance(found, int) and not isinstance(found, bool) and found >= 0
