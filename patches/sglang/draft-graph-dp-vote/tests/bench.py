"""A bench for the vote and for the worker that obeys it: the tree's own text, on ranks that are processes.

The whole of dp_attn.py is executed, and `EagleDraftWorker.draft`; a batch has the plain fields of the tree's own
`ScheduleBatch`. Replaced are what they import, the graph and the eager draft. Those two only meet their peers.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import distributed as dist

from graftwork.harness.isolate import load_class, load_module, read_engine_file, stub, stubbed

SRT = "sglang/srt"
VOTE, BATCH, WORKER = (
    f"{SRT}/managers/scheduler_components/dp_attn.py",
    f"{SRT}/managers/schedule_batch.py",
    f"{SRT}/speculative/eagle_worker_v2.py",
)
COLLECTIVES = ("replay", "step 0", "step 1")


class Mode(Enum):
    """The questions that the vote and the worker ask of a ForwardMode."""

    EXTEND, DECODE, MIXED, IDLE, PREBUILT = range(5)

    def __getattr__(self, question: str) -> Any:
        if question == "is_decode_or_idle":
            return lambda: self in (Mode.DECODE, Mode.IDLE)
        if question == "is_extend":
            return lambda: self in (Mode.EXTEND, Mode.MIXED)
        if question.startswith("is_"):
            return lambda: self.name == question[3:].upper()
        raise AttributeError(question)


@dataclass(frozen=True)
class Step:
    """One scheduler step of all ranks: what each has to do, and how the engine is set up.

    ``ranks``: ``seeded`` and ``seedless`` have a request to draft for, ``idle`` has nothing, ``prebuilt`` only takes in
    a request. ``inactive`` ranks are lost to the group.
    """

    ranks: tuple[str, ...]
    overlap: bool = True
    worker_seeds: bool = True
    graphs_off: bool = False
    inactive: tuple[int, ...] = ()


@dataclass
class Ran:
    """What became of a step on one rank: ``how`` it drafted, and whom it met in each of the draft's collectives."""

    how: str | None = None
    met: list[tuple[str, ...]] = field(default_factory=list)
    tokens: list[int] | None = None
    tbo_columns: list[list[int]] | None = None


class Apart(Exception):
    """Ranks came together in different collectives: on a device each would wait for ever."""


class Bench:
    """The tree's code in one process, which may be a rank."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.active, self.tbo_columns = torch.ones(1), None
        self.batch_class, self.worker_class = self._batch_class(), self._worker_class()
        path = read_engine_file(tree, VOTE)
        with stubbed(*self._imports(path)):
            self.vote = load_module(path, "sglang.srt.managers.scheduler_components.dp_attn")

    def batch(self, mode: Mode, spec_info: Any = None) -> Any:
        """A batch of one request, or of none, as the tree's own class has it before any vote."""
        batch = self.batch_class()
        count = int(mode not in (Mode.IDLE, Mode.PREBUILT))
        given = {"forward_mode": mode, "spec_info": spec_info, "reqs": [None] * count, "batch_size": lambda: count}
        given |= {"seq_lens": torch.ones(count), "seq_lens_sum": count, "inner_idle_batch": None}
        vars(batch).update(given)
        return batch

    def run(self, step: Step, rank: int) -> Ran:
        """The step on this rank: the vote with all ranks, and then the draft, if there is one."""
        self.active = torch.tensor([int(other not in step.inactive) for other in range(len(step.ranks))])
        batch = self._scheduled(step, step.ranks[rank])
        batch = self._sync(step, batch, len(step.ranks))
        if batch is not None and batch.forward_mode is Mode.PREBUILT:
            batch = batch.inner_idle_batch
        ran = Ran(tokens=getattr(batch, "global_num_tokens", None), tbo_columns=self.tbo_columns)
        if batch is not None:
            self._resolve(batch, step)
            ran.how = self.draft(batch, ran.met, seeds=step.worker_seeds, alone=bool(step.inactive))
        return ran

    def draft(self, batch: Any, met: list[tuple[str, ...]], *, seeds: bool = True, alone: bool = True) -> str:
        """Let the tree's worker draft, and say how. Unless *alone*, every part of it meets the other ranks."""
        how: list[str] = []

        def part(way: str, *collectives: str) -> tuple[None, ...]:
            how.append(way)
            for name in () if alone else collectives:
                meet(name, met)
            return (None,) * 4

        worker = self.worker_class()
        worker.seed_dsa_topk_from_draft_extend = seeds
        worker.cuda_graph_runner = SimpleNamespace(execute=lambda batch: part("graph", "replay"))
        worker.draft_forward = lambda batch: part("eager", "step 0", "step 1")
        try:
            worker.draft(batch)
        except Apart:
            how.append("and stopped")
        return " ".join(how)

    def _scheduled(self, step: Step, state: str) -> Any:
        """The batch that a rank brings to the vote. With overlap the seeds in it are those of the last step."""
        if state == "idle":
            return None
        if state == "prebuilt":
            return self.batch(Mode.PREBUILT)
        seeded, seeds = state == "seeded", torch.ones(1, 4)
        now = seeds if seeded != step.overlap else None
        info = SimpleNamespace(
            dsa_topk_indices=now,
            future_indices=torch.zeros(1) if step.overlap else None,
            future_dsa_topk_indices_available=seeded and step.overlap,
            bonus_tokens=None,
        )
        return self.batch(Mode.DECODE, info)

    def _resolve(self, batch: Any, step: Step) -> None:
        """What the engine's future map does between the vote and the draft, or a worker for an idle batch."""
        info = batch.spec_info
        if info is None:
            batch.spec_info = SimpleNamespace(dsa_topk_indices=None, future_indices=None, bonus_tokens=None)
        elif step.overlap:
            info.dsa_topk_indices = torch.ones(1, 4) if info.future_dsa_topk_indices_available else None

    def _sync(self, step: Step, batch: Any, ranks: int) -> Any:
        runner = SimpleNamespace(prefill_cuda_graph_runner=None, spec_algorithm=None, model_config=None)
        given = {
            "model_runner": runner,
            "dp_size": ranks,
            "attn_tp_size": 1,
            "attn_cp_size": 1,
            "tp_group": SimpleNamespace(cpu_group=dist.group.WORLD if dist.is_initialized() else None),
            "get_idle_batch": lambda: self.batch(Mode.IDLE),
            "disable_cuda_graph": step.graphs_off,
            "require_mlp_tp_gather": True,
            "disable_overlap_schedule": False,
            "offload_tags": set(),
        }
        sync = self.vote.prepare_mlp_sync_batch_raw
        wanted = inspect.signature(sync).parameters
        return sync(batch, **{name: value for name, value in given.items() if name in wanted})

    def _worker_class(self) -> type:
        """`EagleDraftWorker` with its draft method, and around it what it takes for granted."""
        nothing = lambda *args, **more: None  # noqa: E731
        names = {
            "contextlib": contextlib,
            "prepare_for_draft": prepare_for_draft,
            "build_eagle_verify_input": nothing,
            "build_tree_kernel_efficient": lambda *args: (None,) * 6,
            "EagleVerifyInput": type("EagleVerifyInput", (), {"__init__": nothing, "create_idle_input": nothing}),
        }
        loaded = load_class(read_engine_file(self.tree, WORKER), "EagleDraftWorker", ["draft"], names)
        backend = SimpleNamespace(get_verify_buffers_to_fill_after_draft=lambda: (torch.ones(1), None))
        given = {
            "prepare_for_draft": staticmethod(prepare_for_draft),
            "draft_runner": SimpleNamespace(canary_manager=None),
            "draft_attn_backend": SimpleNamespace(init_forward_metadata=nothing),
            "target_worker": SimpleNamespace(model_runner=SimpleNamespace(attn_backend=backend)),
            "speculative_num_steps": 3,
            "speculative_num_draft_tokens": 4,
            **dict.fromkeys(("req_to_token_pool", "topk", "tree_mask_mode", "device")),
        }
        for name, value in given.items():
            setattr(loaded, name, value)
        return loaded

    def _batch_class(self) -> type:
        """A class with the fields of the tree's `ScheduleBatch` that have a plain default."""
        tree = ast.parse(read_engine_file(self.tree, BATCH).read_bytes())
        (source,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ScheduleBatch")
        plain = [
            node for node in source.body if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant)
        ]
        return type("ScheduleBatch", (), {ast.unparse(node.target): node.value.value for node in plain})

    def _imports(self, path: Path) -> list[ModuleType]:
        """A stand-in for every engine module that the file imports, with the names that it takes from there."""
        known = {
            "envs": Off(),
            "Phase": Off(),
            "Backend": Off(),
            "ForwardMode": Mode,
            "TboDPAttentionPreparer": lambda: SimpleNamespace(
                prepare_all_gather=lambda batch: (False, (batch.forward_mode if batch else Mode.IDLE).value),
                compute_output=self._compute_tbo,
            ),
            "get_tp_group": lambda: SimpleNamespace(active_ranks_cpu=self.active),
            "world_dp_gather_enabled": lambda: False,
            "check_cuda_graph_backend": lambda *args: False,
            "SchedulerRecvSkipper": SimpleNamespace(derive_forward_mode=lambda modes: None),
        }
        found = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.ImportFrom)]
        modules: dict[str, ModuleType] = {}
        for node in found:
            if (node.module or "").startswith("sglang"):
                module = modules.setdefault(str(node.module), stub(str(node.module)))
                vars(module).update({each.name: known.get(each.name, SimpleNamespace()) for each in node.names})
        return list(modules.values())

    def _compute_tbo(self, columns: Any) -> tuple[None, None]:
        self.tbo_columns = columns.tolist()
        return None, None


class Off:
    """Whatever is asked of it is a switch that is off."""

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(get=lambda: False)


def prepare_for_draft(draft_input: Any, pool: Any, batch: Any, *more: Any) -> tuple[Any, bool]:
    """The engine's, as far as it matters here: a graph fits where the group's other vote allows one."""
    fits = getattr(batch, "can_run_dp_cuda_graph", False) or getattr(batch, "can_run_decode_cuda_graph", False)
    return SimpleNamespace(forward_mode=batch.forward_mode, mark_forward_metadata_ready=lambda: None), fits


def meet(name: str, met: list[tuple[str, ...]]) -> None:
    """Come to the collective *name*. Each rank says which it is, so that a wrong one is told and not waited for."""
    every = torch.empty(dist.get_world_size(), dtype=torch.int64)
    dist.all_gather_into_tensor(every, torch.tensor([COLLECTIVES.index(name)]))
    met.append(tuple(COLLECTIVES[number] for number in every.tolist()))
    if len(set(met[-1])) > 1:
        raise Apart(met[-1])
