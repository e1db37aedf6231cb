"""Chunks that the result of a batch sends: their own copy_done was waited for, so they need no event. Stock passes too.

These are here for the half that was left out: an event for the non-final chunk of process_batch_result_disagg_prefill.
"""

from __future__ import annotations

import pytest

CHUNKS = [[7, 3], [12, 5, 9], [30]]


def test_a_middle_chunk_is_complete_without_an_event(prefill, kit):
    request = prefill.request(1, CHUNKS)
    prefill.device.launch_forward(CHUNKS[0], 100)
    copy_done = kit.Event()
    copy_done.record(prefill.device.forward_stream)
    prefill.device.launch_forward(CHUNKS[1], 200)
    prefill.process_result(request, copy_done, end=2)
    assert prefill.device.forward_stream.done == 1
    prefill.transfer()
    assert prefill.pages_of(request) == {0: 100, 1: 100}


@pytest.mark.parametrize("first", ["early-send", "result"])
def test_pages_are_sent_once_whoever_comes_first(prefill, kit, first):
    request = prefill.request(1, CHUNKS)
    prefill.device.launch_forward(CHUNKS[0], 100)
    copy_done = kit.Event()
    copy_done.record(prefill.device.forward_stream)
    steps = {
        "early-send": lambda: prefill.early_send(request),
        "result": lambda: prefill.process_result(request, copy_done, 2),
    }
    prefill.cache_prefix(request, 2)
    for name in (first, *(name for name in steps if name != first)):
        steps[name]()
    assert sum(len(chunk.prefill_kv_indices) for chunk in prefill.queue._buf) == 2
    prefill.device.forward_stream.finish(1)
    prefill.transfer()
    assert prefill.pages_of(request) == {0: 100, 1: 100}
