"""Payloads of both engines' forms, decoded; and every way in which one can be wrong."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graftwork.launch.kvevents.wire import (
    Batch,
    Cleared,
    MalformedBatch,
    Rejected,
    Removed,
    Stored,
    Unknown,
    decode_batch,
)


def batch(*events: object, rank: int | None = 0) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), *([] if rank is None else [rank])])


def one(event: object) -> object:
    (found,) = decode_batch(batch(event)).events
    return found


def stored(**changed: Any) -> dict[str, Any]:
    """A vLLM event with one full block of four tokens."""
    event = {
        "type": "BlockStored",
        "block_hashes": [7],
        "parent_block_hash": None,
        "token_ids": [1, 2, 3, 4],
        "block_size": 4,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }
    return event | changed


def test_an_array_event() -> None:
    found = one(["BlockStored", [-5], None, [1, 2, 3, 4], 4, None, "CPU_PINNED"])
    assert found == Stored((-5,), None, (1, 2, 3, 4), 4, "CPU_PINNED")


def test_a_map_event() -> None:
    event = stored(lora_name="cats", extra_keys=[["cats"]], group_idx=1, kv_cache_spec_kind="mla_attention")
    assert one(event) == Stored(
        (7,), None, (1, 2, 3, 4), 4, "GPU", lora="cats", extra=(("cats",),), kind="mla_attention", group=1
    )


def test_what_a_publisher_leaves_out() -> None:
    assert one(["BlockStored", [1], None, [1, 2], 2, None]) == Stored((1,), None, (1, 2), 2, "GPU")
    assert one(["BlockRemoved", [1]]) == Removed((1,), None)
    assert one(["AllBlocksCleared"]) == one({"type": "AllBlocksCleared"}) == Cleared()
    assert decode_batch(batch(rank=None)) == Batch(1.5, (), None)


def test_pairs_are_read_as_their_first_tokens() -> None:
    found = one(["BlockStored", [1], None, [[1, 2], [2, 3], [3, 4], [4, 5]], 4, None])
    assert found == Stored((1,), None, (1, 2, 3, 4), 4, "GPU", pairs=True)


def test_names_of_blocks_are_kept_apart() -> None:
    found = one({"type": "BlockRemoved", "block_hashes": [-1, 2**64 - 1, b"\xff" * 32], "medium": None})
    assert isinstance(found, Removed)
    assert len(set(found.hashes)) == 3


def test_an_unknown_tag_is_no_error() -> None:
    assert one(["BlockMoved", 1, 2, 3]) == Unknown("BlockMoved")


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (stored(token_ids=[1, 2, 3, -4]), "token_ids has -4"),
        (stored(token_ids=[1, 2, 3, 2**32]), "token_ids has 4294967296"),
        (stored(token_ids=[1, 2, 3, 4.0]), "token_ids has 4.0"),
        (stored(token_ids=[1, 2, 3, True]), "token_ids has True"),
        (stored(token_ids=[1, [2, 3], 3, 4]), "mixes tokens and pairs"),
        (stored(token_ids=[[1, 2], 2, 3, 4]), "mixes tokens and pairs"),
        (stored(token_ids=[[1, 2], []]), "the pair []"),
        (stored(token_ids=[[1, 2, 3]]), "the pair [1, 2, 3]"),
        (stored(token_ids=[[1, -2]]), "the pair [1, -2]"),
        (stored(token_ids=None), "token_ids is no array"),
        (stored(block_hashes=["7"]), "a block hash is '7'"),
        (stored(block_hashes=[True]), "a block hash is True"),
        (stored(block_hashes=[b""]), "a block hash is b''"),
        (stored(block_hashes=7), "block_hashes is no array"),
        (stored(parent_block_hash="x"), "a block hash is 'x'"),
        (stored(block_size=0), "block_size is 0"),
        (stored(block_size=None), "block_size is None"),
        (stored(medium=3), "medium is 3"),
        (stored(lora_id="a"), "lora_id is 'a'"),
        (stored(group_idx=-1), "group_idx is -1"),
        (stored(cache_salt=3), "cache_salt is 3"),
        (stored(extra_keys=[None, None]), "one entry for each of 1 blocks"),
        (stored(extra_keys=["salt"]), "an entry of extra_keys is no array"),
        (["BlockStored"], "block_size is None"),
        (["BlockRemoved", [1], "GPU", 0], "BlockRemoved has 3 fields"),
        ([7, 1], "tag is 7"),
        ({"block_hashes": [1]}, "tag is None"),
        ([], "an array or a map"),
        ("BlockStored", "an array or a map"),
    ],
)
def test_a_malformed_event_is_rejected_with_its_reason(event: object, says: str) -> None:
    found = one(event)
    assert isinstance(found, Rejected)
    assert says in found.reason


def test_a_malformed_event_takes_no_other_with_it() -> None:
    good, bad = stored(), stored(token_ids=[1, None])
    events = decode_batch(batch(good, bad, good)).events
    assert [type(event) for event in events] == [Stored, Rejected, Stored]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"ts": 1.0}),
        msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode(["now", []]),
        msgspec.msgpack.encode([1.0, {}]),
        msgspec.msgpack.encode([1.0, [], -1]),
        msgspec.msgpack.encode([1.0, [], "0"]),
        msgspec.msgpack.encode([1.0, [], 0, 1]),
        batch(stored())[:-1],
    ],
)
def test_a_malformed_batch(payload: bytes) -> None:
    with pytest.raises(MalformedBatch):
        decode_batch(payload)


simple = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
anything = st.recursive(
    simple, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
)


@given(anything | st.lists(anything, min_size=2, max_size=3))
def test_anything_in_msgpack_is_decoded_or_refused(found: object) -> None:
    try:
        decode_batch(msgspec.msgpack.encode(found))
    except MalformedBatch:
        return


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(payload: bytes) -> None:
    try:
        decode_batch(payload)
    except MalformedBatch:
        return
