"""Decode from hot buffers gives what stock decode gives, bit by bit, whatever happens to requests in between."""

from __future__ import annotations

import pytest
import torch
from hisparse_worker import Worker


@pytest.fixture(params=[False, True], ids=["bf16", "fp8"])
def worker(request, vllm, backend):
    return Worker(vllm, backend, request.param)


def same(found):
    return torch.equal(found["stock"], found["hot"])


def test_prompt_then_decode(worker):
    worker.admit("a", 90)
    worker.admit("b", 5)
    assert same(worker.step({"a": 90, "b": 5}))
    for _ in range(12):
        assert same(worker.step({"a": 1, "b": 1}))
    hits, misses, refused, _ = worker.hot.state.stats[0].tolist()
    assert hits > 0 and misses > 0 and refused == 0


def test_a_spoiled_hot_row_shows(worker):
    worker.admit("a", 6)
    worker.step({"a": 6})
    assert same(worker.step({"a": 1}))
    worker.hot.spoil()
    assert not same(worker.step({"a": 1}))


def test_decode_beside_a_prompt_that_is_computed_in_parts(worker):
    worker.admit("a", 70)
    worker.step({"a": 70})
    worker.admit("long", 150)
    for part in (70, 70, 10):
        assert same(worker.step({"a": 1, "long": part}))
    assert same(worker.step({"a": 1, "long": 1}))


def test_padding_of_a_graph_changes_nothing(worker):
    first, _ = worker.admit("a", 20), worker.admit("b", 30)
    worker.step({"a": 20, "b": 30})
    assert same(worker.step({"a": 1, "b": 1}, pad=2))
    worker.leave(first)
    assert same(worker.step({"b": 1}, pad=1))
    assert same(worker.step({"b": 1}))


def test_rows_change_places(worker):
    names = ["a", "b", "c"]
    for name in names:
        worker.admit(name, 40)
    worker.step(dict.fromkeys(names, 40))
    for _ in range(9):
        worker.random.shuffle(worker.running)
        some = worker.random.sample(names, worker.random.randint(1, 3))
        assert same(worker.step(dict.fromkeys(some, 1)))


def test_preempted_resumed_and_the_same_name_again(worker):
    request = worker.admit("a", 60)
    worker.step({"a": 60})
    assert same(worker.step({"a": 1}))
    worker.leave(request, finished=False)
    again = worker.admit("a", 50, resumed=True)
    assert same(worker.step({"a": 50}))
    assert same(worker.step({"a": 1}))
    worker.leave(again)  # aborted, and the name is used anew in the same step
    worker.admit("a", 30)
    assert same(worker.step({"a": 30}))
    for _ in range(3):
        assert same(worker.step({"a": 1}))


def test_tokens_computed_again_are_read_again(worker):
    request = worker.admit("a", 40)
    worker.step({"a": 40})
    for _ in range(4):
        worker.step({"a": 1})
    request.computed = 41  # as after a KV load that failed: the last three are computed again, with other values
    for _ in range(5):
        assert same(worker.step({"a": 1}))


def test_random_days(worker):
    assert all(same(found) for found in worker.live(30))


def test_few_heads_stage_their_prompts_too(vllm, backend):
    """Stock has one kernel for all tokens of few heads; on a host pool it would read top-k rows for each of them."""
    worker = Worker(vllm, backend, fp8=True, heads=2)
    worker.builders["stock"].num_heads = 64  # stock's other way, to compare with
    worker.admit("a", 90)
    assert same(worker.step({"a": 90}))
    assert same(worker.step({"a": 1}))


def test_without_hot_kv_all_is_stock(worker, backend):
    impl, cache = worker.impls["stock"], worker.caches["stock"]
    assert impl.hot_kv is None
    worker.admit("a", 3)
    worker.step({"a": 3})
    assert cache.any() and worker.builders["stock"].build(0, worker._common([], {}, 1)[0]).hot_kv is None


def test_nothing_is_written_before_there_is_kv(worker):
    impl = worker.impls["hot"]
    impl.do_kv_cache_update(torch.ones(1, 512), torch.ones(1, 1, 64), torch.tensor([]), torch.zeros(1), "auto", None)
    assert not impl.hot_kv.hot.any()


def test_speculative_rows_are_refused(worker, vllm):
    split = type("Split", (), {"num_decodes": 1, "num_decode_tokens": 2})
    with pytest.raises(RuntimeError, match="2 tokens in 1 decode rows"):
        vllm.hot("attention").plan_step(worker.builders["hot"], None, split)
