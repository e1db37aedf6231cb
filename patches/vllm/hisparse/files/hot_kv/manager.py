"""What a worker keeps of hot KV: pools, hot buffers, regions of requests; and what each MLA layer needs of it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from vllm.logger import init_logger

from .config import active, settings
from .planning import in_host_memory
from .pool import HostPool, check_fits, free_memory
from .regions import RegionMap
from .state import HITS, MISSES, REFUSED, HotShape, HotState, as_words
from .stats import HotKVStats

logger = init_logger(__name__)

ROW_BYTES = {"fp8_ds_mla": 656}  # others are bf16: 576 elements
PAGE = 64
DEBUG = "HISPARSE_DEBUG"
REPORT_STEPS = 50  # between two readings of the device's counters


@dataclass
class LayerHotKV:
    """One MLA layer's share: *number* of its tags and order, and its hot buffer [pages, 64, row] as the cache is."""

    owner: HotKV
    number: int
    hot: torch.Tensor

    def write(
        self, kv_c: torch.Tensor, k_pe: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, *kind: Any
    ) -> None:
        """Quantise a step's newest rows on the GPU, then write them to *cache* (the host pool) and to hot rows.

        As `do_kv_cache_update`: kv_c [T', 512], k_pe [T', 1, 64], slots int64 [T], T <= T'; *kind* is dtype and scale.
        """
        from vllm import _custom_ops as ops

        me, slots = self.owner, slots.flatten()
        width = slots.shape[0]
        dtype, scale = kind
        ops.concat_and_cache_mla(
            kv_c, k_pe.squeeze(1), me.staging, me.token_numbers[:width], kv_cache_dtype=dtype, scale=scale
        )
        rows = as_words(me.staging, me.state.shape.row_bytes)[:width]
        me.kernels.write_newest(
            me.state, rows, slots, me.token_regions[:width], self._words(cache), self._words(self.hot), me.tuning
        )

    def resolve(
        self, topk: torch.Tensor, seq_lens: torch.Tensor, slots: torch.Tensor, table: torch.Tensor, cache: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Make the selected rows of a decode batch hot; the hot row of each column, and the columns in use.

        topk int32 [T, K]; see `kernels_launch.resolve`.
        """
        me = self.owner
        host, hot = self._words(cache), self._words(self.hot)
        regions = me.state.region_rows[: topk.shape[0]]
        given = (topk, seq_lens, slots, regions, table)
        index, lengths = me.kernels.resolve(me.state, self.number, *given, host.shape[0], me.tuning)
        me.kernels.copy(me.state, host, hot, me.tuning)
        if me.debug:
            me.judge(self.number, given, host, hot)
        return index, lengths

    def _words(self, rows: torch.Tensor) -> torch.Tensor:
        return as_words(rows, self.owner.state.shape.row_bytes)


class HotKV:
    """Made once the model is loaded and before memory is profiled, so that hot buffers are counted.

    *layers* are the MLA layers by name, in the order of the model; *kernels* is `kernels_launch` unless a test gives
    another. ValueError where a layer has another attention backend, or sizes do not fit the kernels.
    """

    def __init__(
        self, vllm_config: Any, layers: dict[str, Any], device: torch.device, kernels: ModuleType | Any = None
    ) -> None:
        if kernels is None:
            from . import kernels_launch as kernels
        self.kernels = kernels
        limits, model = vllm_config.scheduler_config, vllm_config.model_config
        kinds = {getattr(layer.impl, "kv_cache_dtype", None) for layer in layers.values()}
        if len(kinds) != 1 or not all(hasattr(layer.impl, "hot_kv") for layer in layers.values()):
            found = sorted({type(layer.impl).__name__ for layer in layers.values()})
            raise ValueError(
                f"hisparse_config needs MLA layers of one KV type on FLASHMLA_SPARSE, this model has {found}: "
                "set --attention-backend FLASHMLA_SPARSE"
            )
        row = ROW_BYTES.get(kinds.pop(), 576 * 2)
        shape = HotShape(
            layers=len(layers),
            regions=limits.max_num_seqs,
            slots=settings(vllm_config).slots,
            topk=model.hf_config.index_topk,
            max_len=model.max_model_len,
            row_bytes=row,
            rows=limits.max_num_seqs,
            page=PAGE,
        )
        self.device = device
        self.state = HotState(shape, device)
        self.tuning = kernels.tuning_for(device)
        self.regions = RegionMap(shape.regions)
        self.debug = _debug(vllm_config)
        self.pools: list[HostPool] = []
        tokens = limits.max_num_batched_tokens
        self.token_regions = torch.full((tokens,), shape.inert, dtype=torch.int32, device=device)
        self.token_numbers = torch.arange(tokens, dtype=torch.int64, device=device)
        self.staging = _rows(-(-tokens // PAGE), row, device)
        for number, layer in enumerate(layers.values()):
            layer.impl.hot_kv = LayerHotKV(self, number, _rows(shape.hot_rows // PAGE, row, device))
        self.layers = [layer.impl.hot_kv for layer in layers.values()]
        self.hot_bytes = self.state.nbytes() + sum(layer.hot.nbytes for layer in self.layers)
        self._steps = 0
        self._last = [0, 0, 0]
        self._reading: tuple[torch.Tensor, Any] | None = None
        logger.info(
            "HiSparse: %.2f GiB of GPU memory for %d requests of %d hot rows in %d layers",
            self.hot_bytes / 2**30, shape.regions, shape.slots, shape.layers,
        )  # fmt: skip

    def begin_step(self, output: Any, batch: Any) -> None:
        """Give each request of *batch* (InputBatch, in its final order) its region, as the SchedulerOutput says.

        Who is new, resumed, streamed anew or finished loses what was hot: the tokens may be others now.
        """
        fresh = [new.req_id for new in output.scheduled_new_reqs]
        for request in (*output.finished_req_ids, *fresh, *output.scheduled_cached_reqs.resumed_req_ids):
            self.regions.forget(request)
        computed = batch.num_computed_tokens_cpu
        rows = [(request, int(computed[row])) for row, request in enumerate(batch.req_ids[: batch.num_reqs])]
        placed = self.regions.step(rows)
        self.state.reset(placed.resets)
        self.state.place_rows(placed.regions)
        self._steps += 1

    def mark_decodes(self, decodes: int) -> None:
        """The first *decodes* tokens of this step are decoded, one for each row; only they get hot newest rows."""
        self.token_regions.fill_(self.state.shape.inert)
        self.token_regions[:decodes] = self.state.region_rows[:decodes]

    def host_tensor(self, nbytes: int) -> torch.Tensor:
        """*nbytes* of zeroed host memory as an int8 tensor of the GPU."""
        pool = HostPool(nbytes, self.device)
        self.pools.append(pool)
        return pool.device

    def release(self) -> None:
        """Give all host memory back, once the GPU was waited for and the tensors of the layers are dropped."""
        while self.pools:
            self.pools.pop().close()

    def take_stats(self) -> HotKVStats | None:
        """What happened since the last report, at times; never waits for the device."""
        if self._reading is not None:
            counts, done = self._reading
            if done is not None and not done.query():
                return None
            self._reading = None
            return self._report(counts.tolist())
        if self._steps >= REPORT_STEPS:
            self._steps = 0
            on_gpu = self.device.type == "cuda"
            counts = torch.empty(3, dtype=torch.int64, pin_memory=on_gpu)
            counts.copy_(self.state.stats, non_blocking=True)
            done = torch.cuda.Event() if on_gpu else None
            if done is not None:
                done.record()
            self._reading = counts, done
        return None

    def _report(self, now: list[int]) -> HotKVStats:
        hits, misses = (now[which] - self._last[which] for which in (HITS, MISSES))
        self._last = now
        pool = sum(pool.nbytes for pool in self.pools)
        copied = misses * self.state.shape.row_bytes
        return HotKVStats(hits, misses, copied, self.hot_bytes, pool, now[REFUSED])

    def judge(self, number: int, given: Iterable[torch.Tensor], host: torch.Tensor, hot: torch.Tensor) -> None:
        """RuntimeError with each invariant that does not hold in a layer after its rows were made hot."""
        from .oracle import broken

        if faults := broken(self.state, number, *given, host, hot):
            raise RuntimeError(f"HiSparse, MLA layer {number}: {'; '.join(faults)}")

    def spoil(self) -> None:
        """Flip bits in every hot row. For tests: an engine that still gives the same logprobs does not read them."""
        for layer in self.layers:
            words = as_words(layer.hot, self.state.shape.row_bytes)
            words.bitwise_xor_(0x15151515)


def create(vllm_config: Any, device: torch.device, kernels: Any = None) -> HotKV | None:
    """The worker's hot KV, None where it was not asked for. ValueError, before any pool exists, if it does not fit."""
    if not active(vllm_config):
        return None
    parallel = vllm_config.parallel_config
    ranks = parallel.local_world_size * max(1, parallel.data_parallel_size_local)
    check_fits(settings(vllm_config).pool_bytes, ranks, free_memory())
    context = vllm_config.compilation_config.static_forward_context
    layers = {name: layer for name, layer in context.items() if in_host_memory(name) and _is_mla(layer)}
    return HotKV(vllm_config, layers, device, kernels)


def _is_mla(layer: Any) -> bool:
    return hasattr(getattr(layer, "impl", None), "forward_mqa")


def _rows(pages: int, row_bytes: int, device: torch.device) -> torch.Tensor:
    if row_bytes == 576 * 2:
        return torch.zeros((pages, PAGE, 576), dtype=torch.bfloat16, device=device)
    return torch.zeros((pages, PAGE, row_bytes), dtype=torch.uint8, device=device)


def _debug(vllm_config: Any) -> bool:
    wanted = os.environ.get(DEBUG, "") not in ("", "0")
    mode = vllm_config.compilation_config.cudagraph_mode
    if wanted and mode is not None and mode.name.startswith("FULL"):
        raise ValueError(f"{DEBUG} checks from Python, which a replayed graph does not run: use --enforce-eager")
    return wanted
