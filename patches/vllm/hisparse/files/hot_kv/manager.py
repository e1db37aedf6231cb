"""What a worker keeps of hot KV: pools, hot buffers, regions of requests; and what each MLA layer needs of it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
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
    """One MLA layer's share: its hot buffer [pages, 64, row] as the cache is, and whose tags say what is in it.

    *number*: of the selection, with its tags and order; *leads*: whether this layer makes it, or copies by it; *layer*:
    the engine's, which has the cache; *copied*: when what was copied ahead is there, on a GPU.
    """

    owner: HotKV
    name: str
    number: int
    leads: bool
    hot: torch.Tensor
    layer: Any
    copied: torch.cuda.Event | None = None

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

        topk int32 [T, K]; see `kernels_launch.resolve`. RuntimeError where the selection is not the last one made.
        """
        me, host = self.owner, self._words(cache)
        regions = me.state.region_rows[: topk.shape[0]]
        given = (topk, seq_lens, slots, regions, table)
        if self.leads:
            me.select(self.number, given, host.shape[0])
        index, lengths = me.selected(self)
        if self.leads:
            self.copy(me.tuning)
            me.copy_ahead(self.number)
        elif me.settled:
            self.wait()
        else:
            self.copy(me.tuning)
        if me.debug:
            me.judge(self, given, host, self._words(self.hot))
        return index, lengths

    def copy(self, tuning: Any) -> None:
        """Copy the rows that the last selection found missing, on the current stream."""
        me = self.owner
        me.kernels.copy(me.state, self._words(self.layer.kv_cache), self._words(self.hot), tuning)

    def wait(self) -> None:
        """Have the current stream wait for the rows that were copied ahead."""
        if self.copied is not None:
            torch.cuda.current_stream().wait_event(self.copied)

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
        shares = selections(layers.values())
        shape = HotShape(
            layers=1 + shares[-1][0],
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
        for (name, layer), share in zip(layers.items(), shares, strict=True):
            layer.impl.hot_kv = LayerHotKV(self, name, *share, _rows(shape.hot_rows // PAGE, row, device), layer)
        self.layers = [layer.impl.hot_kv for layer in layers.values()]
        self.users = torch.bincount(torch.tensor([number for number, _ in shares]))
        # Of high priority, or its copies wait until the kernels beside it leave room.
        self.beside = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        self.settled, self.forces_eager = True, False
        self._made: tuple[int, torch.Tensor, torch.Tensor] | None = None
        self.hot_bytes = self.state.nbytes() + sum(layer.hot.nbytes for layer in self.layers)
        self._steps = 0
        self._last = torch.zeros_like(self.state.stats, device="cpu")
        self._reading: tuple[torch.Tensor, Any] | None = None
        logger.info(
            "HiSparse: %.2f GiB of GPU memory for %d requests of %d hot rows in %d layers of %d selections",
            self.hot_bytes / 2**30, shape.regions, shape.slots, len(layers), shape.layers,
        )  # fmt: skip

    def begin_step(self, output: Any, batch: Any) -> None:
        """Give each request of *batch* (InputBatch, in its final order) its region, as the SchedulerOutput says.

        Who is new, resumed, streamed anew or finished loses what was hot: the tokens may be others now. If nobody did,
        the step is settled. Otherwise one may share a block that another fills in this step, layer by layer, so nothing
        may be copied ahead. Full graphs do that, so a step of decodes alone then runs without them.
        """
        fresh = [new.req_id for new in output.scheduled_new_reqs]
        for request in (*output.finished_req_ids, *fresh, *output.scheduled_cached_reqs.resumed_req_ids):
            self.regions.forget(request)
        computed = batch.num_computed_tokens_cpu
        rows = [(request, int(computed[row])) for row, request in enumerate(batch.req_ids[: batch.num_reqs])]
        placed = self.regions.step(rows)
        self.state.reset(placed.resets)
        self.state.place_rows(placed.regions)
        self.settled = not placed.resets
        shared = self.state.shape.layers < len(self.layers)
        self.forces_eager = shared and not self.settled and output.total_num_scheduled_tokens == batch.num_reqs
        self._steps += 1

    def mark_decodes(self, decodes: int) -> None:
        """The first *decodes* tokens of this step are decoded, one for each row; only they get hot newest rows."""
        self.token_regions.fill_(self.state.shape.inert)
        self.token_regions[:decodes] = self.state.region_rows[:decodes]
        self._made = None  # no layer may copy by what the step before selected
        if self.beside is not None:  # idle, unless a forward ended between a leader and those that share with it
            torch.cuda.current_stream().wait_stream(self.beside)

    def copy_ahead(self, number: int) -> None:
        """Copy for the layers that share a selection, beside what the leader computes now, if the step is settled.

        They read host rows of tokens before this step's alone, and write hot rows that no layer reads before it waits.
        """
        sharing = [layer for layer in self.layers if layer.number == number and not layer.leads and self.settled]
        if self.beside is None or not sharing:
            for layer in sharing:
                layer.copy(self.tuning)
            return
        tuning = replace(self.tuning, early=False)  # its first launch follows a kernel of another stream
        self.beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.beside):
            for layer in sharing:
                layer.copy(tuning)
                layer.copied = layer.copied or torch.cuda.Event()
                layer.copied.record()

    def select(self, number: int, given: tuple[torch.Tensor, ...], host_rows: int) -> None:
        """Resolve a selection; *given* and *host_rows* as `kernels_launch.resolve` takes them."""
        made = self.kernels.resolve(self.state, number, *given, host_rows, self.tuning)
        self._made = number, *made

    def selected(self, layer: LayerHotKV) -> tuple[torch.Tensor, torch.Tensor]:
        """The index and lengths of a layer's selection. RuntimeError if the scratch holds another, or an older one."""
        if self._made is None or self._made[0] != layer.number:
            raise RuntimeError(f"HiSparse: {layer.name} shares a selection that was not the last one made in this step")
        return self._made[1:]

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
            return self._report(counts)
        if self._steps >= REPORT_STEPS:
            self._steps = 0
            on_gpu = self.device.type == "cuda"
            counts = torch.empty(self.state.stats.shape, dtype=torch.int64, pin_memory=on_gpu)
            counts.copy_(self.state.stats, non_blocking=True)
            done = torch.cuda.Event() if on_gpu else None
            if done is not None:
                done.record()
            self._reading = counts, done
        return None

    def _report(self, now: torch.Tensor) -> HotKVStats:
        since, self._last = now - self._last, now
        hits, misses = int(since[:, HITS].sum()), int(since[:, MISSES].sum())
        copied = int(since[:, MISSES] @ self.users) * self.state.shape.row_bytes
        pool = sum(pool.nbytes for pool in self.pools)
        return HotKVStats(hits, misses, copied, self.hot_bytes, pool, int(now[:, REFUSED].sum()))

    def judge(self, layer: LayerHotKV, given: Iterable[torch.Tensor], host: torch.Tensor, hot: torch.Tensor) -> None:
        """RuntimeError with each invariant that does not hold in a layer after its rows were made hot."""
        from .oracle import broken

        if faults := broken(self.state, layer.number, *given, host, hot):
            raise RuntimeError(f"HiSparse, {layer.name}: {'; '.join(faults)}")

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


def selections(layers: Iterable[Any]) -> list[tuple[int, bool]]:
    """For each MLA layer, in the order of the model: the number of its selection, and whether the layer makes it.

    One without an indexer (index_topk_freq, index_topk_pattern) attends by what the last one with an indexer selected.
    """
    leads = [place == 0 or layer.indexer is not None for place, layer in enumerate(layers)]
    return [(made - 1, leading) for made, leading in zip(accumulate(leads), leads, strict=True)]


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
