"""Events that the real publisher classes of both wheels send over ZeroMQ, decoded to the keys of a flat reference.

The two files are executed here, apart from their engines: they need only msgspec, pyzmq and a few stand-ins.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from kvevents.test_view import flat
from wheels import wheel_file

from graftwork.harness.isolate import load_module, stub, stubbed
from graftwork.launch.kvevents.feed import END_OF_REPLAY, Feed, Replay
from graftwork.launch.ports import free_block

pytestmark = pytest.mark.real
zmq = pytest.importorskip("zmq", reason="pyzmq is missing: the publishers send over it (pip install pyzmq)")

TOKENS = tuple(range(50, 62))
SGLANG = ("sglang", "0.5.15.post1", "sglang/srt/disaggregation/kv_events.py")
SGLANG_MAPS = ("sglang", "0.5.23", SGLANG[2])
VLLM = ("vllm", "0.24.0", "vllm/distributed/kv_events.py")


@contextmanager
def events_module(folder: Path, engine: str, version: str, path: str) -> Iterator[ModuleType]:
    """The engine's own module of KV events."""
    file = folder / f"{engine}_kv_events.py"
    file.write_bytes(wheel_file(engine, version, path))
    stubs = [
        stub("sglang.srt.runtime_context", get_parallel=object),
        stub("sglang.srt.utils.network", NetworkAddress=object),
        stub("vllm.config.kv_events", KVEventsConfig=object),
        stub("vllm.logger", init_logger=lambda name: SimpleNamespace(**dict.fromkeys(LOGS, print))),
        stub("vllm.v1.core.kv_cache_utils", ExternalBlockHash=bytes | int),
    ]
    with stubbed(*stubs):
        yield load_module(file, f"{engine}_kv_events")


LOGS = ("debug", "info", "warning", "error", "exception")


@contextmanager
def published(module: ModuleType, rank: int, replay: bool = False) -> Iterator[tuple[Any, Any, str, str]]:
    """A publisher of the engine for *rank*, a subscriber, the address for it, and where to ask for a replay."""
    with ExitStack() as stack:
        ports = stack.enter_context(free_block(2 * (rank + 1), "0.0.0.0")).hand_over()
        base, again = ports.start, ports.start + rank + 1
        where = {"replay_endpoint": f"tcp://*:{again}"} if replay else {}
        publisher = module.ZmqEventPublisher(rank, endpoint=f"tcp://*:{base}", **where)
        stack.callback(publisher.shutdown)
        context = stack.enter_context(zmq.Context())
        subscriber = stack.enter_context(context.socket(zmq.SUB))
        subscriber.setsockopt(zmq.SUBSCRIBE, b"")
        yield publisher, subscriber, f"tcp://127.0.0.1:{base + rank}", f"tcp://127.0.0.1:{again + rank}"


def settle(publish: Callable[[], None], subscriber: Any) -> list[list[bytes]]:
    """Publish until the subscriber hears it: the first messages of a PUB socket are lost until it is connected."""
    for _ in range(600):
        publish()
        if subscriber.poll(100):
            return [subscriber.recv_multipart()]
    raise AssertionError("nothing was received within a minute")


def rest(subscriber: Any, count: int) -> list[list[bytes]]:
    found = []
    for _ in range(count):
        assert subscriber.poll(60_000), f"{len(found)} of {count} messages were received"
        found.append(subscriber.recv_multipart())
    return found


def run(module: ModuleType, rank: int, batches: list[list[Any]]) -> Feed:
    """Publish empty batches until one is heard, then *batches*; the feed that took all of them."""
    made = itertools.count()

    def publish(events: list[Any]) -> None:
        next(made)
        publisher.publish(module.KVEventBatch(ts=time.time(), events=events))

    with published(module, rank) as (publisher, subscriber, address, _):
        subscriber.connect(address)
        heard = settle(lambda: publish([]), subscriber)
        for events in batches:
            publish(events)
        first = int.from_bytes(heard[0][1], "big")
        heard += rest(subscriber, next(made) - first - 1)
    feed = Feed()
    for frames in heard:
        feed.receive(frames)
    assert feed.counters.missed == first
    return feed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kv_events")


def sglang_stored(module: ModuleType, names: list[int], parent: int | None, tokens: list[Any]) -> Any:
    return module.BlockStored(
        block_hashes=names, parent_block_hash=parent, token_ids=tokens, block_size=4, lora_id=None, medium="GPU"
    )


def test_sglang_flat_with_negative_names_on_its_rank(folder: Path) -> None:
    with events_module(folder, *SGLANG) as module:
        one = sglang_stored(module, [-7], None, list(TOKENS[:4]))
        two = sglang_stored(module, [2**62, -9], -7, list(TOKENS[4:]))
        feed = run(module, 1, [[one], [two]])
    assert list(feed.ranks) == [1]
    assert feed.view(1).keys() == set(flat(TOKENS))


def test_sglang_with_maps_and_a_salt(folder: Path) -> None:
    """Events are maps since 0.5.23 at the latest; what was stored under a salt is no hit for a plain prompt."""
    with events_module(folder, *SGLANG_MAPS) as module:
        plain = sglang_stored(module, [1], None, list(TOKENS[:4]))
        salted = sglang_stored(module, [5, 6], None, list(TOKENS[4:]))
        salted.cache_salt = "s"
        feed = run(module, 0, [[plain, salted], [module.BlockRemoved(block_hashes=[9], medium="GPU")]])
    assert feed.view(0).match(TOKENS) == 1 and feed.view(0).match(TOKENS[4:]) == 0
    assert (len(feed.view(0)), feed.counters.applied, feed.counters.forgotten) == (3, 3, 1)


def test_sglang_pairs_give_the_keys_of_the_flat_tokens(folder: Path) -> None:
    """Nine tokens are eight pairs, two pages of four: the keys are those of the first eight tokens."""
    pairs = [(TOKENS[n], TOKENS[n + 1]) for n in range(8)]
    with events_module(folder, *SGLANG) as module:
        feed = run(module, 0, [[sglang_stored(module, [1, 2], None, pairs)]])
    assert feed.view(0).keys() == set(flat(TOKENS[:8]))


def test_sglang_removes_and_clears(folder: Path) -> None:
    with events_module(folder, *SGLANG) as module:
        stored = sglang_stored(module, [1, 2, 3], None, list(TOKENS))
        removed = module.BlockRemoved(block_hashes=[3], medium="GPU")
        feed = run(module, 0, [[stored], [removed]])
        assert feed.view(0).match(TOKENS) == 2
        feed = run(module, 0, [[stored, module.AllBlocksCleared()]])
    assert len(feed.view(0)) == 0
    assert feed.counters.applied == 2


@pytest.mark.parametrize("names", [[2**63 + 1, 2, 3], [b"a" * 32, b"b" * 32, b"c" * 32]], ids=["unsigned", "bytes"])
def test_vllm_stores_and_removes(folder: Path, names: list[Any]) -> None:
    with events_module(folder, *VLLM) as module:

        def stored(**changed: Any) -> Any:
            fields = {"lora_id": None, "medium": "GPU", "lora_name": None, "block_size": 4, "parent_block_hash": None}
            return module.BlockStored(**fields | changed)

        one = stored(block_hashes=names[:1], token_ids=list(TOKENS[:4]))
        two = stored(block_hashes=names[1:], token_ids=list(TOKENS[4:]), parent_block_hash=names[0], group_idx=0)
        other = stored(block_hashes=[99], token_ids=[1, 2, 3, 4], group_idx=1, kv_cache_spec_kind="sliding_window")
        removed = module.BlockRemoved(block_hashes=names[2:], medium="GPU", group_idx=0)
        feed = run(module, 2, [[one, two, other], [removed]])
    assert list(feed.ranks) == [2]
    assert feed.view(2).keys() == set(flat(TOKENS[:8]))
    assert (feed.counters.ignored, feed.counters.orphaned, feed.counters.rejected) == (1, 0, 0)


@pytest.mark.parametrize("source", [SGLANG, VLLM], ids=["sglang", "vllm"])
def test_a_late_router_has_the_root_replayed(folder: Path, source: tuple[str, str, str]) -> None:
    """The root was published before anybody listened; without its replay every later block is an orphan."""
    made = itertools.count()
    with ExitStack() as stack:
        module = stack.enter_context(events_module(folder, *source))
        publisher, subscriber, address, where = stack.enter_context(published(module, 0, replay=True))

        def publish(*events: Any) -> None:
            next(made)
            publisher.publish(module.KVEventBatch(ts=time.time(), events=list(events)))

        def stored(name: int, parent: int | None) -> Any:
            fields = {"lora_id": None, "medium": "GPU", "block_size": 4, "parent_block_hash": parent}
            fields |= {"lora_name": None} if source is VLLM else {}
            return module.BlockStored(block_hashes=[name], token_ids=list(TOKENS[name * 4 : name * 4 + 4]), **fields)

        def replay(first: int) -> Iterator[tuple[int, bytes]]:
            with zmq.Context() as context, context.socket(zmq.DEALER) as asking:
                asking.connect(where)
                asking.send_multipart([b"", first.to_bytes(8, "big")])
                while asking.poll(60_000):
                    _, number, payload = asking.recv_multipart()
                    yield int.from_bytes(number, "big", signed=True), payload

        publish(stored(0, None))
        publish(stored(1, 0))
        wait_for(1, replay)
        subscriber.connect(address)
        heard = settle(publish, subscriber)
        publish(stored(2, 1))
        heard += rest(subscriber, next(made) - int.from_bytes(heard[0][1], "big") - 1)
        feed = Feed(replay=replay)
        for frames in heard:
            feed.receive(frames)
    assert feed.counters.missed == 0
    assert feed.counters.replayed >= 2
    assert feed.view(0).match(TOKENS) == 3


def wait_for(number: int, replay: Replay) -> None:
    """Until the publisher has sent the message *number*, to nobody: a replay has it."""
    for _ in range(600):
        sent = itertools.takewhile(lambda found: found != END_OF_REPLAY, (found for found, _ in replay(0)))
        if number in list(sent):
            return
        time.sleep(0.1)
    raise AssertionError(f"message {number} was not sent within a minute")
