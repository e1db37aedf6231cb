"""Launching the kernels on a state: resolve, copy, write of the newest rows. Nothing here waits for the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from .kernels import resolve_kernel, sort_kernel
from .kernels_copy import copy_kernel, newest_kernel
from .state import HotState


@dataclass(frozen=True)
class Tuning:
    """Sizes that change speed and nothing else. Threads are of one program; a wave is what the device runs in step.

    copy_programs x copy_rows rows of a long list are in flight at once: enough to fill the bus, few enough to stay
    close together. Of a short one, twice as many.
    few: so many missing rows of a batch are copied as they are listed; more are sorted by host address.
    early: a kernel is launched while the one in front of it ends (CUDA's programmatic dependent launch).
    """

    wave: int = 32
    resolve_threads: int = 256
    sort_threads: int = 256
    copy_threads: int = 128
    copy_programs: int = 132
    copy_rows: int = 4
    few: int = 512
    early: bool = False

    def warps(self, threads: int) -> int:
        """Waves of *threads* threads."""
        return max(1, threads // self.wave)

    def launch(self, threads: int) -> dict[str, int | bool]:
        """What a launch of a kernel that may begin early is given."""
        given = {"num_warps": self.warps(threads), "EARLY": self.early}
        if self.early:
            given["launch_pdl"] = True
            if threads > 256:  # else ptxas keeps half of the registers for a second program, and spills
                given["maxnreg"] = 65_536 // threads
        return given


def tuning_for(device: torch.device) -> Tuning:
    """The defaults on *device*: a copying program for each multiprocessor, waves of 64 on HIP's CDNA."""
    if device.type != "cuda":
        return Tuning(copy_programs=4)
    facts = torch.cuda.get_device_properties(device)
    wave = getattr(facts, "warp_size", 32)
    early = torch.version.hip is None and facts.major >= 9
    return Tuning(wave=wave, copy_programs=facts.multi_processor_count, early=early)


def resolve(
    state: HotState,
    layer: int,
    topk: torch.Tensor,
    seq_lens: torch.Tensor,
    slots: torch.Tensor,
    regions: torch.Tensor,
    table: torch.Tensor,
    host_rows: int,
    tuning: Tuning,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Make the positions that each row selects hot in *layer*, all but the bytes: those come with `copy`.

    topk int32 [T, K] of positions, -1 for none; seq_lens int32 [T], the newest token included; slots int64 [T], host
    row of the newest token, -1 for padding; regions int32 [T]; table int32 [T, blocks of a request]; host_rows: rows of
    the layer's host pool. Returns, valid until the next call, index int32 [T, K] (hot row of each column, -1 where topk
    is -1 or the row is padded) and lengths int32 [T] (columns up to the last used one). ValueError for other shapes.
    """
    shape, width = state.shape, topk.shape[0]
    _judge(state, topk, {"seq_lens": seq_lens, "slots": slots, "regions": regions, "table": table})
    block_k, block_h = triton.next_power_of_2(shape.topk), triton.next_power_of_2(shape.slots)
    threads = min(1024, max(tuning.resolve_threads, block_h // 16))  # what a thread holds of the order fits registers
    shared = {"TOPK": shape.topk, "BIN_SHIFT": bin_shift(host_rows, state.bin_count), "BLOCK_K": block_k}
    resolve_kernel[(width,)](
        topk, seq_lens, slots, regions, table, state.inverse, state.tags[layer], state.order[layer], state.index,
        state.lengths, state.victims, state.count, state.source, state.target, state.nth, state.bins,
        state.stats[layer], topk.stride(0), table.stride(0), table.shape[1], host_rows // shape.page,
        REGIONS=shape.regions, SLOTS=shape.slots, STRIDE=shape.stride, MAX_LEN=shape.max_len, PAGE=shape.page,
        BLOCK_H=block_h, **shared, **tuning.launch(threads),
    )  # fmt: skip
    sort_kernel[(width,)](
        state.count, state.ends, state.source, state.target, state.nth, state.bins, **_lists(state, tuning), **shared,
        **tuning.launch(tuning.sort_threads),
    )  # fmt: skip
    return state.index[:width], state.lengths[:width]


def copy(state: HotState, host: torch.Tensor, hot: torch.Tensor, tuning: Tuning) -> None:
    """Copy the rows that the last `resolve` found missing. host, hot: int32 [rows, words], see `as_words`.

    May be repeated with the buffers of other layers that use the same selection and the same tags, one after the other.
    """
    shape = state.shape
    _judge_rows(state, hot, shape.hot_rows)
    _judge_rows(state, host, None)
    copy_kernel[(2 * tuning.copy_programs,)](
        host, hot, state.source, state.target, state.ends, state.bins, state.queue, TOPK=shape.topk,
        ROWS=tuning.copy_rows, WORDS=shape.words, BLOCK_W=triton.next_power_of_2(shape.words), **_lists(state, tuning),
        **tuning.launch(tuning.copy_threads),
    )  # fmt: skip


def write_newest(
    state: HotState,
    rows: torch.Tensor,
    slots: torch.Tensor,
    regions: torch.Tensor,
    host: torch.Tensor,
    hot: torch.Tensor,
    tuning: Tuning,
) -> None:
    """Write each row's newest token, int32 [T, words], to its host row and to its region's row for the newest token.

    A slot of -1 writes nothing; the inert region writes to the host alone (tokens of a prefill).
    """
    shape = state.shape
    _judge_rows(state, rows, None)
    _judge_rows(state, hot, shape.hot_rows)
    _judge_rows(state, host, None)
    if not len(rows) == len(slots) == len(regions):
        raise ValueError(f"{len(rows)} rows, {len(slots)} slots and {len(regions)} regions")
    newest_kernel[(len(rows),)](
        rows, slots, regions, host, hot, host.shape[0],
        REGIONS=shape.regions, SLOTS=shape.slots, STRIDE=shape.stride, WORDS=shape.words,
        BLOCK_W=triton.next_power_of_2(shape.words), num_warps=tuning.warps(tuning.copy_threads),
    )  # fmt: skip


def _lists(state: HotState, tuning: Tuning) -> dict[str, int]:
    """What sort and copy must agree on."""
    return {
        "BINS": state.bin_count,
        "BLOCK_T": len(state.ends),
        "FEW": tuning.few,
        "SORTED": state.shape.rows * state.shape.topk,
    }


def bin_shift(host_rows: int, bins: int) -> int:
    """The least shift that maps row numbers below *host_rows* to fewer than *bins* numbers."""
    return max(0, (host_rows - 1).bit_length() - (bins.bit_length() - 1))


def _judge(state: HotState, topk: torch.Tensor, others: dict[str, torch.Tensor]) -> None:
    width, shape = topk.shape[0], state.shape
    if topk.shape[1] != shape.topk or not 1 <= width <= shape.rows:
        raise ValueError(f"topk is {tuple(topk.shape)}, wanted 1 to {shape.rows} rows of {shape.topk}")
    kinds = {"topk": torch.int32, "slots": torch.int64, "seq_lens": torch.int32, "regions": torch.int32}
    for name, tensor in {"topk": topk, **others}.items():
        if tensor.dtype != kinds.get(name, torch.int32):
            raise ValueError(f"{name} is {tensor.dtype}, wanted {kinds.get(name, torch.int32)}")
        if tensor.shape[0] < width:
            raise ValueError(f"{name} has {tensor.shape[0]} rows, the batch {width}")
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name} must be contiguous along its last dimension")


def _judge_rows(state: HotState, rows: torch.Tensor, count: int | None) -> None:
    words = state.shape.words
    if rows.dtype != torch.int32 or rows.dim() != 2 or rows.shape[1] != words or not rows.is_contiguous():
        raise ValueError(f"rows are {rows.dtype} {tuple(rows.shape)}, wanted contiguous int32 [rows, {words}]")
    if count is not None and rows.shape[0] != count:
        raise ValueError(f"{rows.shape[0]} hot rows, wanted {count}")
