"""Steady decode in an engine that this process steps by hand: KV filled with random rows, selections that drift.

Needs vLLM and a GPU. What is timed is a run of steps in which all running requests decode one token each.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from inside import Inside
from models import VOCABULARY

# Of a pattern: by how much the embeddings of decoded tokens differ (0 to 1), and how much of the indexer's query turns
# with the position. By a model of one layer, with 4,096 hot rows, 1, 5 and 17 % of a 16k context miss; 64k: 1, 10, 33.
PATTERNS = {"still": (0.0, 0.0), "steady": (0.0, 0.3), "slow": (0.1, 1.0), "fast": (0.3, 1.0)}
FILL = 1024  # blocks that are filled at once


class Steady:
    """An engine and the means to bring it to steady decode. While `skipping`, the model's forward is not run."""

    def __init__(self, inside: Inside) -> None:
        self.inside = inside
        self.step = inside.llm.llm_engine.step
        self.skipping = self.timing = False
        self._marks: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        runner = inside.runner
        self._forward = runner._model_forward
        runner._model_forward = self._model_forward
        named = dict(runner.get_model().named_parameters())
        self._embedding = next(one.data for name, one in named.items() if "embed_tokens" in name)
        self._tokens = self._embedding.clone()
        self._queries = [(one.data, one.data.clone()) for name, one in named.items() if "indexer.wq_b" in name]
        tokens = max(runner.vllm_config.scheduler_config.max_num_batched_tokens, 1024)  # a graph may pad a small batch
        self._made_up = self._tokens[torch.arange(tokens, device=self._tokens.device) % len(self._tokens)]

    def _model_forward(self, *given: Any, **named: Any) -> Any:
        if self.skipping:
            positions = named["positions"] if "positions" in named else given[1]
            return self._made_up[: positions.shape[-1]]
        if not self.timing:
            return self._forward(*given, **named)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        out = self._forward(*given, **named)
        end.record()
        self._marks.append((begin, end))
        return out

    def locality(self, drift: float, turn: float) -> None:
        """How much selections change from step to step, see PATTERNS; changes weights in place."""
        with torch.inference_mode():
            common = self._tokens[:1].float()
            mixed = (1 - drift**2) ** 0.5 * common + drift * self._tokens.float()
            self._embedding.copy_(mixed)
            for weight, plain in self._queries:
                heads = plain.view(-1, 128, plain.shape[-1])
                scale = torch.ones(128, 1, dtype=plain.dtype, device=plain.device)
                scale[:64] = turn
                weight.copy_((heads * scale).view_as(plain))

    @torch.inference_mode()
    def fill(self) -> None:
        """Random rows in all KV caches, by the engine's own writing ops: decode reads as much as of computed ones."""
        from vllm import _custom_ops as ops

        one = torch.ones(1, dtype=torch.float32, device="cuda")
        chance = torch.Generator(device="cuda").manual_seed(0)

        def rows(count: int, width: int) -> torch.Tensor:
            return torch.randn(count, width, dtype=torch.bfloat16, device="cuda", generator=chance)

        for name, layer in self.inside.caches().items():
            cache = layer.kv_cache
            for first in range(0, cache.shape[0], FILL):
                slots = torch.arange(first * 64, min(first + FILL, cache.shape[0]) * 64, device="cuda")
                if ".indexer" in name:
                    ops.indexer_k_quant_and_cache(rows(len(slots), 128), cache, slots, 128, "ue8m0")
                else:
                    kind = layer.impl.kv_cache_dtype
                    ops.concat_and_cache_mla(rows(len(slots), 512), rows(len(slots), 64), cache, slots, kind, one)
        torch.cuda.synchronize()

    def decoding(self) -> list[Any]:
        """The running requests, if all of them decode; else none."""
        running = list(self.inside.scheduler.running)
        return running if all(one.num_output_tokens > 0 for one in running) else []

    def settle(self, at_least: int, stable: int = 4, limit: int = 4000) -> int:
        """Step until *at_least* requests run, all decode, and no other joins for some steps; how many run.

        RuntimeError where that does not come, with what runs and waits.
        """
        same, count = 0, 0
        for _ in range(limit):
            self.step()
            now = len(self.decoding())
            same = same + 1 if now >= at_least and now == count else 0
            count = now
            if same >= stable:
                return count
        scheduler = self.inside.scheduler
        raise RuntimeError(f"no steady decode: {len(scheduler.running)} run, {len(scheduler.waiting)} wait")

    def measure(self, steps: int) -> dict[str, Any]:
        """Time *steps* steps. RuntimeError where the batch changed meanwhile.

        wall_ms is of a whole step with scheduling and sampling, gpu_ms of the model's forward alone.
        """
        before, hits = self.decoding(), self.inside.counts()
        tokens = sum(one.num_output_tokens for one in before)
        self._marks, self.timing = [], True
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            self.step()
        torch.cuda.synchronize()
        wall = time.perf_counter() - began
        self.timing = False
        after = self.decoding()
        if not before or [one.request_id for one in after] != [one.request_id for one in before]:
            raise RuntimeError(f"the batch changed from {len(before)} to {len(after)} while it was timed")
        made = sum(one.num_output_tokens for one in after) - tokens
        gpu = [begin.elapsed_time(end) for begin, end in self._marks]
        found, missed, refused, copied = (now - then for now, then in zip(self.inside.counts(), hits, strict=True))
        return {
            "running": len(before),
            "waiting": len(self.inside.scheduler.waiting),
            "steps": steps,
            "tokens": made,
            "wall_ms": wall / steps * 1e3,
            "gpu_ms": statistics.median(gpu),
            "gpu_ms_quartiles": [round(one, 4) for one in statistics.quantiles(gpu, n=4)],
            "tokens_per_s": made / wall,
            "miss_rate": missed / (found + missed) if found + missed else None,
            "misses_a_step": missed / steps,
            "copied_mb_a_step": copied / steps / 1e6,
            "refused": refused,
            "longest": max(one.num_computed_tokens for one in after),
        }


def prompt(number: int, length: int) -> list[int]:
    """Token numbers of a prompt that shares no block with others."""
    return [(number * 131 + place * 7 + (place // 64) * number) % VOCABULARY for place in range(length)]


def copy_limit() -> float:
    """GB/s of a plain copy from pinned memory."""
    source = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    best = float("inf")
    for _ in range(4):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        target.copy_(source, non_blocking=True)
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end))
    return source.nbytes / best / 1e6
