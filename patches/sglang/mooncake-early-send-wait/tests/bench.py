"""A prefill node made of the engine's own text: scheduler mixin, sender, manager and transfer worker of mooncake.

Replaced are the device (device.py), the RDMA transfer, by a copy of the pages as they are when it is asked for, and
what the scheduler reports to. Pages of a request are scattered; the decode side numbers its own.
"""

from __future__ import annotations

import logging
import threading
import time
import typing
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from packaging.version import Version

from graftwork.harness.isolate import load_class, load_function, load_module, read_engine_file, stub, stubbed

device = load_module(Path(__file__).with_name("device.py"), "mooncake_early_send_wait_device")
Device, Event, STALE = device.Device, device.Event, device.STALE

DISAGG = "sglang/srt/disaggregation"
PAGE = 4
SESSION = "decode:7000"
POLL = SimpleNamespace(Bootstrapping=1, WaitingForInput=2, Transferring=3, Success=4, Failed=0)


class Drained(BaseException):
    """Ends the worker's endless loop at an empty queue; not an Exception, which the worker reports as a fault."""


class NoTrace:
    """Stands for the engine's trace contexts."""


class Prefill:
    """One prefill node and one decode peer. ``received`` holds what arrived: (room, decode page) to value."""

    def __init__(self, tree: Path, version: Version) -> None:
        self.tree, self.version = tree, version
        self.device = Device(64)
        self.received: dict[tuple[int, int], int] = {}
        self.owner: dict[int, int] = {}
        with self._stubs():
            self.utils = load_module(read_engine_file(tree, f"{DISAGG}/common/utils.py"), "sglang_common_utils")
        self.queue = self.utils.FastQueue()
        self.manager = self._manager()
        self.scheduler = self._scheduler()
        self.sender_class = self._sender_class()

    def request(self, room: int, chunks: list[list[int]]) -> Any:
        """A request whose *chunks* are lists of device pages; its prefix is empty, and nothing was sent."""
        pages = [page for chunk in chunks for page in chunk]
        self.owner |= dict.fromkeys(pages, room)
        self.manager.request_status[room] = POLL.Transferring
        info = SimpleNamespace(
            room=room,
            is_dummy=False,
            mooncake_session_id=SESSION,
            endpoint="decode",
            dst_port=1,
            required_dst_info_num=1,
        )
        info.dst_kv_indices = np.arange(len(pages), dtype=np.int32)
        info.dst_device_kv_indices, info.decode_prefix_len = None, 0
        self.manager.transfer_infos[room] = {SESSION: info}
        sender = self.sender_class()
        vars(sender).update(
            kv_mgr=self.manager, bootstrap_room=room, curr_idx=0, num_kv_indices=len(pages), aux_index=0
        )
        vars(sender).update(
            _transfer_num_kv_indices=0, _transfer_num_state_indices=0, _transfer_start_time=None, conclude_state=None
        )
        sender.trace_ctx = SimpleNamespace(copy_for_thread=lambda: None)
        sender.get_max_transfer_tokens = lambda: None
        if self.version >= Version("0.5.23"):
            sender._early_send_wait_event = None  # what its __init__ does
        slots = [page * PAGE + offset for page in pages for offset in range(PAGE)]
        row = len(self.scheduler.req_to_token_pool.rows)
        self.scheduler.req_to_token_pool.rows.append(slots)
        request = SimpleNamespace(
            rid=f"r{room}", origin_input_ids=[0] * len(slots), req_pool_idx=row, disagg_kv_sender=sender,
            prefix_indices=[], prefix_len=0, host_hit_length=0, start_send_idx=0, early_send_prefix_end=None,
            pending_bootstrap=False, extend_range=SimpleNamespace(end=0), inflight_middle_chunks=1, tmp_end_idx=-1,
            metadata_buffer_index=0, return_logprob=False, return_sampling_mask=False, disagg_decode_prefix_len=0,
            finished_reason=None, to_finish=None, grammar=None, time_stats=MagicMock(),
        )  # fmt: skip
        request.kv = request  # from 0.5.18 on the pool's row stands one level deeper
        return request

    def cache_prefix(self, request: Any, pages: int) -> None:
        """The radix tree has the first *pages* of the request now, as after its earlier chunk was scheduled."""
        request.prefix_indices = [0] * (pages * PAGE)
        request.prefix_len = pages * PAGE

    def early_send(self, request: Any) -> None:
        """What run_batch does for each request before it launches the forward."""
        with self._stubs():
            self.scheduler.maybe_send_cached_prefix_chunk(request)

    def process_result(self, request: Any, copy_done: Any, end: int) -> None:
        """Process the result of a batch with one middle chunk of *request* that ends at page *end*."""
        request.tmp_end_idx = end * PAGE
        request.extend_range.end = request.extend_end = end * PAGE
        batch = SimpleNamespace(reqs=[request], spec_info=None, prefill_stats=None, dp_cooperation_info=None)
        result = MagicMock(copy_done=copy_done, next_draft_input=None, next_token_ids=torch.tensor([1]))
        result.routed_experts_output = result.indexer_topk_output = result.auxiliary_host_output = None
        result.extend_input_len_per_req = result.extend_logprob_start_len_per_req = result.logits_output = None
        with self._stubs():
            self.scheduler.process_batch_result_disagg_prefill(batch, result)

    def transfer(self) -> None:
        """Run the transfer worker on all that is queued, as its own thread would."""
        try:
            self.work(self.queue)
        except Drained:
            return

    def work(self, queue: Any) -> None:
        draining = SimpleNamespace(get=lambda: queue.get() if queue._buf else self._drained(), put=queue.put)
        self.manager.transfer_worker(draining, None)

    def pages_of(self, request: Any) -> dict[int, int]:
        room = request.disagg_kv_sender.bootstrap_room
        return {page: value for (own, page), value in sorted(self.received.items()) if own == room}

    def _drained(self) -> None:
        raise Drained

    def _manager(self) -> Any:
        namespace = {
            **{name: getattr(typing, name) for name in ("Any", "Dict", "List", "Optional", "Tuple", "Union")},
            **{"KVPoll": POLL, "DisaggregationMode": SimpleNamespace(PREFILL=1), "np": np, "torch": torch},
            **{"TransferKVChunk": self.utils.TransferKVChunk, "TraceNullContext": NoTrace},
            **{"logger": logging.getLogger("mooncake"), "time": time},
        }
        path = read_engine_file(self.tree, f"{DISAGG}/mooncake/conn.py")
        manager = load_class(path, "MooncakeKVManager", ["transfer_worker", "add_transfer_request"], namespace)()
        self.namespace = namespace
        peer = SimpleNamespace(
            dst_kv_ptrs=[0], dst_attn_tp_size=1, dst_tp_rank=0, dst_kv_item_len=1, dst_kv_item_lens=[1], staging=None,
            requires_dcp_relayout=False, dst_kv_layer_ids=None, dst_device_kv_ptrs=None,
        )  # fmt: skip
        vars(manager).update(
            disaggregation_mode=1, request_status={}, transfer_infos={}, transfer_queues=[self.queue], bootstrap_port=0,
            enable_trace=False, enable_staging=False, attn_tp_rank=0, attn_tp_size=1, attn_cp_rank=0, attn_cp_size=1,
            pp_rank=0, pp_size=1, session_lock=threading.Lock(), failed_sessions=set(), session_failures={},
            decode_kv_args_table={SESSION: peer}, is_mla_backend=True, req_to_decode_prefix_len={},
            enable_all_cp_ranks_for_transfer=False, is_dummy_cp_rank=False, kv_args=SimpleNamespace(kv_data_ptrs=[0]),
            _staging_outstanding=defaultdict(int), enable_deferred_decode_kv_release=False, _dcp_pack_buffers=None,
            _dcp_pack_max_tokens=None, state_layout_rejections={}, kv_shard_size=1, send_kvcache=self._rdma,
            prepare_send_state_indices=lambda indices: indices, _prefill_unique_rank=lambda: 0,
            _get_dsa_cache_transfer_skip_flags=lambda _: (False, False),
        )  # fmt: skip
        manager.check_status = manager.request_status.__getitem__
        return manager

    def _rdma(self, session: str, source: Any, _: Any, target: Any, *__: Any, **___: Any) -> int:
        """Copy pages as they are at this instant."""
        for here, there in zip(source.tolist(), target.tolist(), strict=True):
            self.received[self.owner[here], there] = int(self.device.memory[here])
        return 0

    def _sender_class(self) -> type:
        path = read_engine_file(self.tree, f"{DISAGG}/mooncake/conn.py")
        common = read_engine_file(self.tree, f"{DISAGG}/common/conn.py")
        members = ["_prepare_send_indices", "should_send_kv_chunk", "_record_transfer_indices", "send"]
        base = load_class(common, "CommonKVSender", members, self.namespace)
        own = load_class(path, "MooncakeKVSender", ["send"], self.namespace, optional=["send"])
        return type("Sender", (own, base), {})

    def _scheduler(self) -> Any:
        pages = load_function(
            read_engine_file(self.tree, "sglang/srt/mem_cache/common.py"),
            "kv_to_page_indices",
            {"np": np, "torch": torch},
        )
        namespace = {
            **{name: getattr(typing, name) for name in ("Any", "List", "Optional")},
            **{"logger": logging.getLogger("prefill"), "np": np, "kv_to_page_indices": pages},
            "torch": SimpleNamespace(cuda=SimpleNamespace(Event=Event), Tensor=torch.Tensor),
            "envs": SimpleNamespace(SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX=SimpleNamespace(get=lambda: True)),
            **{"is_aborted": lambda _: False, "should_force_retry": lambda _: False},
        }
        members = ["maybe_send_cached_prefix_chunk", "send_kv_chunk", "process_batch_result_disagg_prefill"]
        scheduler = load_class(
            read_engine_file(self.tree, f"{DISAGG}/prefill.py"),
            "SchedulerDisaggregationPrefillMixin",
            [*members, "_send_kv_chunk"],
            namespace,
            optional=["_send_kv_chunk"],
        )()
        vars(scheduler).update(
            enable_overlap=True, enable_staging=False, device_module=SimpleNamespace(Event=Event),
            forward_stream=self.device.forward_stream,
            kv_checksum_computer=None,
            token_to_kv_pool_allocator=SimpleNamespace(
                page_size=PAGE, translate_kv_indices_for_transfer=lambda indices: indices
            ),
            req_to_token_pool=Rows(), batch_result_processor=MagicMock(), metrics_reporter=MagicMock(),
            output_streamer=MagicMock(), chunked_req=None, maybe_send_health_check_signal=lambda: None,
            spec_algorithm=SimpleNamespace(is_eagle=lambda: False), disagg_prefill_pending_chunk_rids=set(),
        )  # fmt: skip
        return scheduler

    @contextmanager
    def _stubs(self) -> Iterator[None]:
        trace = stub("sglang.srt.observability.trace", TraceNullContext=NoTrace, TraceReqContext=NoTrace)
        with stubbed(trace):
            yield


class Rows:
    """Stands for the request-to-token pool: ``req_to_token[row, start:end]``."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []

    @property
    def req_to_token(self) -> Any:
        width = max(map(len, self.rows))
        return torch.tensor([[*row, *[0] * (width - len(row))] for row in self.rows])
