"""One publisher followed: sequence numbers, gaps and their replay, restarts, and the ranks that it speaks for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from graftwork.launch.kvevents.view import Counters, KeyOf, RankView, block_key
from graftwork.launch.kvevents.wire import MalformedBatch, Rejected, Unknown, decode_batch

logger = logging.getLogger(__name__)

# Given the first number that is wanted, the (sequence number, payload) pairs that the publisher still has, in order.
Replay = Callable[[int], Iterable[tuple[int, bytes]]]
END_OF_REPLAY = -1


class Feed:
    """The messages of one publisher, as frames ``[topic, sequence, payload]``, applied to a view for each rank.

    *rank* is meant where a batch names none. *replay* is asked for what was missed; without it, or where the publisher
    no longer has it, the messages are counted as ``missed`` and the views may be short of blocks.
    """

    def __init__(
        self,
        rank: int = 0,
        *,
        block_size: int | None = None,
        replay: Replay | None = None,
        key_of: KeyOf = block_key,
    ) -> None:
        self.counters = Counters()
        self.ranks: dict[int, RankView] = {}
        self._rank, self._block_size = rank, block_size
        self._replay, self._key_of = replay, key_of
        self._last = -1

    def view(self, rank: int | None = None) -> RankView:
        """The view of *rank* (default: this publisher's own), made when it is first asked for."""
        wanted = self._rank if rank is None else rank
        if wanted not in self.ranks:
            self.ranks[wanted] = RankView(self.counters, self._block_size, self._key_of)
        return self.ranks[wanted]

    def receive(self, frames: Sequence[bytes]) -> None:
        """Take one message. What cannot be decoded is counted and left out; nothing is raised for it."""
        self.counters.messages += 1
        if len(frames) != 3 or len(frames[1]) != 8:
            self.counters.decode_failed += 1
            return
        number = int.from_bytes(frames[1], "big", signed=True)
        if number < 0:
            self.counters.decode_failed += 1
            return
        if number <= self._last:
            self._restart(number)
        if number > self._last + 1 and self._replay is not None:
            self._catch_up(self._replay, number)
        if number > self._last:
            self._take(number, frames[2])

    def _restart(self, number: int) -> None:
        """A number that went back: the publisher is a new process, and its cache is empty."""
        logger.info("KV events went back from %d to %d: the engine was started again", self._last, number)
        self.counters.restarts += 1
        for view in self.ranks.values():
            view.clear()
        self._last = -1

    def _catch_up(self, replay: Replay, number: int) -> None:
        """Everything that the publisher still has, up to *number*, in order, so that no event meets a later one."""
        for found, payload in replay(self._last + 1):
            if found == END_OF_REPLAY:
                break
            if self._last < found < number:
                self._take(found, payload)
                self.counters.replayed += 1

    def _take(self, number: int, payload: bytes) -> None:
        self.counters.missed += number - self._last - 1
        self._last = number
        try:
            batch = decode_batch(payload)
        except MalformedBatch as error:
            self.counters.decode_failed += 1
            logger.debug("KV events, message %d: %s", number, error)
            return
        view = self.view(batch.rank)
        for event in batch.events:
            if isinstance(event, Rejected):
                self.counters.rejected += 1
                logger.debug("KV events, message %d: %s", number, event.reason)
            elif isinstance(event, Unknown):
                self.counters.unknown += 1
            else:
                view.apply(event)
