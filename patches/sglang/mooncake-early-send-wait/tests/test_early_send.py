"""The pages of a cached prefix, handed over while the forward that writes them may still run: they arrive complete.

A chunked request gets there in each step: its earlier chunk is the cached prefix of the next one.
"""

from __future__ import annotations

import threading

import pytest

ROOM = 1
CHUNKS = [[7, 3], [12, 5, 9], [30]]


def assert_complete(prefill, request, wanted):
    """Each page as its forward wrote it; ``wanted`` is decode page to value."""
    assert prefill.pages_of(request) == wanted, "pages were read before the forward that writes them was done"


def test_a_prefix_that_is_still_being_written_arrives_complete(prefill):
    request = prefill.request(ROOM, CHUNKS)
    prefill.device.launch_forward(CHUNKS[0], 100)
    prefill.cache_prefix(request, 2)
    prefill.early_send(request)
    prefill.device.launch_forward(CHUNKS[1], 200)
    prefill.transfer()
    assert_complete(prefill, request, {0: 100, 1: 100})


def test_each_early_send_waits_for_its_own_forward(prefill):
    request = prefill.request(ROOM, CHUNKS)
    prefill.device.launch_forward(CHUNKS[0], 100)
    prefill.cache_prefix(request, 2)
    prefill.early_send(request)
    prefill.device.launch_forward(CHUNKS[1], 200)
    prefill.transfer()
    prefill.cache_prefix(request, 5)
    prefill.early_send(request)
    prefill.device.launch_forward(CHUNKS[2], 300)
    prefill.transfer()
    assert_complete(prefill, request, {0: 100, 1: 100, 2: 200, 3: 200, 4: 200})


def test_requests_that_wait_in_one_queue_do_not_mix_their_events(prefill):
    one, other = prefill.request(1, [[1], [2]]), prefill.request(2, [[40, 41], [42]])
    prefill.device.launch_forward([1], 100)
    prefill.cache_prefix(one, 1)
    prefill.early_send(one)
    prefill.device.launch_forward([40, 41], 200)
    prefill.cache_prefix(other, 2)
    prefill.early_send(other)
    prefill.transfer()
    assert_complete(prefill, one, {0: 100})
    assert_complete(prefill, other, {0: 200, 1: 200})


def test_only_the_forward_that_writes_the_prefix_is_waited_for(prefill):
    request = prefill.request(ROOM, CHUNKS)
    prefill.device.launch_forward(CHUNKS[0], 100)
    prefill.cache_prefix(request, 2)
    prefill.early_send(request)
    prefill.device.launch_forward(CHUNKS[1], 200)
    prefill.transfer()
    assert prefill.device.forward_stream.done == 1, "one forward was to be waited for, not the one launched after it"


def test_the_scheduler_does_not_wait(prefill):
    request = prefill.request(ROOM, CHUNKS)
    prefill.device.launch_forward(CHUNKS[0], 100)
    prefill.cache_prefix(request, 2)
    prefill.early_send(request)
    assert prefill.device.forward_stream.done == 0, "the early send is there to overlap: the scheduler must go on"
    worker = threading.Thread(target=prefill.transfer, name="worker", daemon=True)
    worker.start()
    worker.join(120)
    assert not worker.is_alive()
    assert set(prefill.device.forward_stream.waiters) == {"worker"}
    assert_complete(prefill, request, {0: 100, 1: 100})


def test_a_request_that_is_aborted_during_the_wait_is_not_sent(prefill, kit):
    request = prefill.request(ROOM, CHUNKS)
    prefill.device.forward_stream.launch(lambda: prefill.manager.request_status.update({ROOM: kit.POLL.Failed}))
    prefill.cache_prefix(request, 2)
    prefill.early_send(request)
    prefill.transfer()
    assert prefill.received == {}, "the room failed before its pages were complete"


@pytest.mark.parametrize("cached", [0, 2], ids=["nothing-cached", "cached-long-ago"])
def test_without_overlap_nothing_is_waited_for(prefill, cached):
    prefill.scheduler.enable_overlap = False
    request = prefill.request(ROOM, CHUNKS)
    prefill.device.launch_forward(CHUNKS[0], 100)
    prefill.device.forward_stream.finish(1)
    prefill.cache_prefix(request, cached)
    prefill.early_send(request)
    prefill.transfer()
    assert prefill.device.forward_stream.waiters == []
    assert_complete(prefill, request, dict.fromkeys(range(cached), 100))
