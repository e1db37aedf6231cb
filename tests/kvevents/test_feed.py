"""Messages in order, with gaps, replayed, from an engine that was started again, and broken ones."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from graftwork.launch.kvevents.feed import END_OF_REPLAY, Feed


def payload(name: int, parent: int | None = None, rank: int | None = None) -> bytes:
    """One block of four tokens; its tokens follow from its name."""
    event = ["BlockStored", [name], parent, [name * 4 + n for n in range(4)], 4, None]
    return msgspec.msgpack.encode([0.0, [event], *([] if rank is None else [rank])])


def message(number: int, body: bytes) -> list[bytes]:
    return [b"", number.to_bytes(8, "big"), body]


CHAIN = [payload(0), payload(1, 0), payload(2, 1), payload(3, 2)]
PROMPT = range(16)


def test_messages_in_order() -> None:
    feed = Feed()
    for number, body in enumerate(CHAIN):
        feed.receive(message(number, body))
    assert feed.view().match(PROMPT) == 4
    assert (feed.counters.applied, feed.counters.missed, feed.counters.silent) == (4, 0, False)


def test_a_gap_is_counted_and_what_hangs_on_it_is_orphaned() -> None:
    feed = Feed()
    for number in (0, 3):
        feed.receive(message(number, CHAIN[number]))
    assert (feed.counters.missed, feed.counters.orphaned) == (2, 1)
    assert feed.view().match(PROMPT) == 1


def test_a_gap_is_filled_by_replay_in_order() -> None:
    asked = []

    def replay(first: int) -> Iterator[tuple[int, bytes]]:
        asked.append(first)
        yield from ((number, CHAIN[number]) for number in range(first, 4))
        yield END_OF_REPLAY, b""

    feed = Feed(replay=replay)
    feed.receive(message(3, CHAIN[3]))
    assert asked == [0]
    assert feed.view().match(PROMPT) == 4
    assert (feed.counters.replayed, feed.counters.missed) == (3, 0)


def test_what_the_publisher_no_longer_has_is_missed() -> None:
    feed = Feed(replay=lambda first: iter([(2, CHAIN[2]), (END_OF_REPLAY, b"")]))
    feed.receive(message(3, CHAIN[3]))
    assert (feed.counters.missed, feed.counters.replayed, feed.counters.orphaned) == (2, 1, 2)
    assert feed.counters.silent


def test_an_engine_that_was_started_again_has_an_empty_cache() -> None:
    feed = Feed()
    for number in range(3):
        feed.receive(message(number, CHAIN[number]))
    feed.receive(message(0, payload(9)))
    assert feed.view().match(PROMPT) == 0
    assert len(feed.view()) == 1
    assert (feed.counters.restarts, feed.counters.missed) == (1, 0)


def test_ranks_are_kept_apart() -> None:
    feed = Feed(rank=5)
    feed.receive(message(0, payload(0, rank=0)))
    feed.receive(message(1, payload(1, 0, rank=1)))
    feed.receive(message(2, payload(0)))
    assert sorted(feed.ranks) == [0, 1, 5]
    assert [len(feed.view(rank)) for rank in (0, 1, 5)] == [1, 0, 1]
    assert feed.counters.orphaned == 1


@pytest.mark.parametrize(
    "frames",
    [
        [b"", (0).to_bytes(8, "big")],
        [b"", b"\x00", CHAIN[0]],
        [b"", (-1).to_bytes(8, "big", signed=True), CHAIN[0]],
        message(0, b"\xc1"),
    ],
)
def test_a_broken_message_is_counted(frames: list[bytes]) -> None:
    feed = Feed()
    feed.receive(frames)
    assert feed.counters.decode_failed == 1
    assert feed.counters.silent
    assert feed.counters.as_dict()["applied"] == 0


def test_events_that_are_rejected_or_unknown_are_counted() -> None:
    feed = Feed()
    events = [["BlockStored", [1], None, [1, None], 2, None], ["BlockMoved"], ["AllBlocksCleared"]]
    feed.receive(message(0, msgspec.msgpack.encode([0.0, events])))
    assert (feed.counters.rejected, feed.counters.unknown, feed.counters.applied) == (1, 1, 1)
