"""A bench for the real `Indexer._get_topk_paged`: the tree's own text, torch on the CPU, three kernels replaced.

Replaced are the aiter logits kernel, the C++ top-k (with the row check of the C++ code kept) and the DeepGEMM call.
Everything between them is the text of the tree under test.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from packaging.version import Version

from graftwork.harness.defect import defect
from graftwork.harness.isolate import load_class, load_function, load_module, read_engine_file, stub, stubbed

torch.set_num_threads(1)

oracle = load_module(Path(__file__).with_name("oracle.py"), "dsa_indexer_rows_oracle")
Batch, check = oracle.Batch, oracle.check

SRT = "sglang/srt/layers/attention"
LAYER = 3
DEFECT = r"Expected lengths\.size\(0\) == B|Expected index \["


@dataclass
class Result:
    """What came back, what the logits kernel was given, and what the shared metadata looked like around it."""

    out: Any
    inputs: oracle.Inputs
    kernel_calls: list[SimpleNamespace]
    before: dict[str, Any]
    after: dict[str, Any]
    identity_kept: bool


class Switches:
    """Stands for `sglang.srt.environ.envs`: every switch is off but those named; without any, top-k runs unfused."""

    def __init__(self, *on: str) -> None:
        self._on = on

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(get=lambda: name in self._on)


def fast_topk_transform_fused(score, lengths, page_table_size_1, cu_seqlens_q, topk, row_starts=None):
    """The fused kernel's shape checks (upstream sgl-kernel/csrc/elementwise/topk.cu at 06c48ca8), then its result.

    score: (B, width); page_table_size_1: (requests, width), of which row b of the scores uses the one that
    cu_seqlens_q says. Returns slots (B, topk), -1 where a row has fewer.
    """
    rows, requests = score.size(0), cu_seqlens_q.size(0) - 1
    for holds, text in (
        (lengths.size(0) == rows, f"lengths.size(0) == B ({lengths.size(0)}, {rows})"),
        (page_table_size_1.size(0) == requests, f"src_page_table.size(0) == prefill_bs ({requests})"),
        (requests <= rows, f"prefill_bs <= B ({requests}, {rows})"),
    ):
        if not holds:
            raise RuntimeError(f"Expected {text} to be true, but got false.")
    slots = torch.full((rows, topk), -1, dtype=torch.int32)
    for row in range(rows):
        request = int((cu_seqlens_q <= row).sum()) - 1
        best = score[row, : int(lengths[row])].topk(min(topk, int(lengths[row]))).indices
        slots[row, : len(best)] = page_table_size_1[request, best]
    return slots


class Bench:
    """Runs one tree's indexer. ``has_mask`` says whether the release forces init and local tokens (0.5.16 on)."""

    def __init__(
        self, tree: Path, version: Version, *, backend: str = "aiter", fused: bool = False, optimize: int = -1
    ) -> None:
        self.tree, self.backend, self.fused, self.optimize = tree, backend, fused, optimize
        self.version, self.has_mask = version, version >= Version("0.5.16")
        self.calls: list[SimpleNamespace] = []
        self.rows_of_topk: int | None = None
        with self._stubs():
            path = read_engine_file(tree, f"{SRT}/dsa/dsa_topk_backend.py")
            self.topk = load_module(path, "sglang.srt.layers.attention.dsa.dsa_topk_backend", optimize=optimize)
        self.namespace = self._namespace()
        self.indexer_class = self._indexer_class()
        self.metadata_class = self._metadata_class()

    def on(self, backend: str) -> Bench:
        """The same tree on another logits backend: ``deepgemm`` or ``cutedsl``, in a CUDA-like namespace."""
        return Bench(self.tree, self.version, backend=backend, optimize=self.optimize)

    def fusing(self) -> Bench:
        """The same tree with top-k and the page-table lookup fused: the result holds slots, not positions."""
        return Bench(self.tree, self.version, fused=True, optimize=self.optimize)

    def run(self, batch: oracle.Batch, *, faulty_topk: int = 0) -> Result:
        """Call the tree's `_get_topk_paged`. *faulty_topk* rows are added to what top-k returns (negative: cut)."""
        inputs, self.calls, self.rows_of_topk = oracle.make_inputs(batch), [], None
        metadata = self._metadata(inputs, batch, faulty_topk)
        indexer = self._indexer(batch, inputs)
        before, held = snapshot(metadata)
        with defect(RuntimeError, match=DEFECT), self._stubs():
            q, weights = inputs.q.clone(), inputs.weights.clone()
            out = indexer._get_topk_paged(forward_batch(batch), LAYER, q, weights, metadata)
        after, held_after = snapshot(metadata)
        same = held.keys() == held_after.keys() and all(held[name] is held_after[name] for name in held)
        return Result(out, inputs, self.calls, before, after, same)

    @contextmanager
    def _stubs(self) -> Iterator[None]:
        def aiter_kernel(q, kv, weights, out, lengths, table, width, *, Preshuffle, KVBlockSize):
            self.calls.append(SimpleNamespace(q=q.shape[0], weights=weights.shape[0], preshuffle=Preshuffle))
            assert (kv.shape[1], out.shape[1]) == (KVBlockSize, width)
            oracle.reference_logits(q, kv, weights, out, lengths, table)

        def fast_topk_v2(score, lengths, topk, row_starts=None):
            # The C++ check; without it torch broadcasts one length over all rows and the defect goes unseen.
            if lengths.size(0) != score.size(0):
                got = f"B is {score.size(0)}, lengths.size(0) is {lengths.size(0)}"
                raise RuntimeError(f"Expected lengths.size(0) == B to be true, but got false. ({got})")
            return self.topk._topk_unfused(
                score, lengths, topk, row_starts=row_starts, topk_op=torch.topk, topk_op_kwargs={"dim": -1}
            )

        with stubbed(
            stub("aiter.ops.triton.pa_mqa_logits", deepgemm_fp8_paged_mqa_logits=aiter_kernel),
            stub(
                "sgl_kernel",
                fast_topk_v2=fast_topk_v2,
                fast_topk_transform_fused=fast_topk_transform_fused,
                fast_topk_transform_ragged_fused=None,
            ),
            stub("sglang.srt.environ", envs=Switches(*(["SGLANG_DSA_FUSE_TOPK"] if self.fused else []))),
            stub("sglang.srt.runtime_context", get_exec=None, get_spec=None),
            stub("sglang.srt.utils", is_hip=lambda: self.backend == "aiter"),
        ):
            yield

    def _deepgemm(self, q, kv, weights, lengths, table, schedule, width, *, clean_logits):
        self.calls.append(SimpleNamespace(q=q.shape[0], weights=weights.shape[0], preshuffle=None))
        out = torch.empty(q.shape[0], width)
        oracle.reference_logits(q, kv, weights, out, lengths, table)
        return out

    def _cutedsl(self, q, kv, weights, lengths, table, schedule, width, *, q_offset, **_):
        q, weights, lengths = q[:q_offset].unsqueeze(1), weights[:q_offset], self.expanded_lengths
        return self._deepgemm(q, kv, weights, lengths, table, schedule, width, clean_logits=False)

    def _namespace(self) -> dict[str, Any]:
        """The globals of dsa_indexer.py that the paged path reads; the logits helpers are the tree's own."""
        hip = self.backend == "aiter"
        kernels = read_engine_file(
            self.tree,
            "sglang/kernels/ops/attention/dsa/paged_mqa_logits.py",
            "sglang/jit_kernel/dsa/paged_mqa_logits.py",
        )
        own = {"torch": torch, "_restore_row_stride": lambda logits: logits}
        helpers = {
            name: load_function(kernels, name, own, optimize=self.optimize)
            for name in ("aiter_paged_mqa_logits", "deepgemm_paged_mqa_logits_split")
        }
        schedule = {"get_paged_mqa_logits_metadata": lambda *_: "schedule"}
        deep_gemm = SimpleNamespace(fp8_paged_mqa_logits=self._deepgemm, **schedule)
        return {
            **helpers,
            **{name: getattr(typing, name) for name in ("Any", "Dict", "List", "Optional", "Tuple", "Union")},
            "cutedsl_paged_mqa_logits": self._cutedsl,
            "deep_gemm": None if hip else deep_gemm,
            "resolve_paged_mqa_logits_metadata_fn": lambda: None if hip else deep_gemm.get_paged_mqa_logits_metadata,
            "resolve_fp8_paged_mqa_logits_fn": lambda: None if hip else deep_gemm.fp8_paged_mqa_logits,
            "pick_dsl_expand": None,
            "torch": torch,
            "math": math,
            "TYPE_CHECKING": False,
            "envs": Switches(),
            **{"_is_hip": hip, "_is_cuda": not hip, "_is_xpu": False, "_is_npu": False},
        }

    def _indexer_class(self) -> type:
        path = read_engine_file(self.tree, f"{SRT}/dsa/dsa_indexer.py")
        later = ["_mask_init_and_local_tokens", "_get_index_k_read_buffer"]
        return load_class(
            path,
            "Indexer",
            ["_get_topk_paged", *later],
            self.namespace,
            optional=() if self.has_mask else later,
            optimize=self.optimize,
        )

    def _metadata_class(self) -> type:
        path = read_engine_file(self.tree, f"{SRT}/dsa/dsa_indexer_metadata.py", f"{SRT}/dsa_backend.py")
        members = ["topk_transform", "get_seqlens_expanded", "get_dsa_extend_len_cpu", "get_seqlens_int32"]
        members += ["get_page_table_1", "get_page_table_64"]
        return load_class(path, "DSAIndexerMetadata", members, {"torch": torch}, optimize=self.optimize)

    def _metadata(self, inputs: oracle.Inputs, batch: oracle.Batch, faulty_topk: int) -> Any:
        bench = self

        class Metadata(self.metadata_class):  # type: ignore[misc, name-defined]
            def topk_transform(self, *args: Any, **kwargs: Any) -> Any:
                out = super().topk_transform(*args, **kwargs)
                bench.rows_of_topk = out.shape[0]
                if faulty_topk < 0:
                    return out[:faulty_topk]
                return torch.cat([out, out[:1].expand(faulty_topk, -1)]) if faulty_topk else out

        metadata = Metadata()
        metadata.topk_backend = self.topk.DSATopKBackend.SGL_KERNEL
        metadata.topk_transform_method = self.topk.TopkTransformMethod.PAGED
        metadata.force_unfused_topk = not self.fused
        metadata.paged_mqa_schedule_metadata = None
        metadata.paged_mqa_ctx_lens_2d = None
        # Decode and idle batches have one row a request, so both lengths are the same tensor there.
        per_request = torch.full((len(batch.extend),), oracle.KEYS, dtype=torch.int32)
        metadata.attn_metadata = SimpleNamespace(
            dsa_extend_seq_lens_list=list(batch.extend),
            dsa_seqlens_expanded=inputs.lengths,
            cache_seqlens_int32=inputs.lengths if batch.mode in ("idle", "decode") else per_request,
            cu_seqlens_q=torch.arange(batch.real + 1, dtype=torch.int32) if self.fused else None,
            topk_indices_offset=None,
            token_to_batch_idx=None,
            real_page_table=inputs.table,
            page_table_1=inputs.table,
        )
        return metadata

    def _indexer(self, batch: oracle.Batch, inputs: oracle.Inputs) -> Any:
        self.expanded_lengths = inputs.lengths
        pool = SimpleNamespace(
            page_size=batch.page,
            index_page_size=batch.page,
            get_index_k_with_scale_buffer=lambda layer_id: {LAYER: inputs.buffer}[layer_id],
        )
        self.namespace["get_token_to_kv_pool"] = lambda: pool
        self.namespace["_use_aiter_preshuffle"] = self.backend == "aiter" and batch.page != 1
        indexer = self.indexer_class()
        indexer.paged_mqa_logits_backend = SimpleNamespace(
            is_aiter=lambda: self.backend == "aiter",
            is_cutedsl=lambda: self.backend == "cutedsl",
            is_deepgemm=lambda: self.backend == "deepgemm",
        )
        indexer.index_topk, indexer.sm_count, indexer.n_heads = oracle.TOPK, 1024, oracle.HEADS
        indexer.num_init_tokens, indexer.num_local_tokens = batch.init_tokens, batch.local_tokens
        return indexer


def forward_batch(batch: oracle.Batch) -> Any:
    """The parts of a ForwardBatch that the paged path asks for."""
    return SimpleNamespace(
        forward_mode=SimpleNamespace(
            is_target_verify=lambda: batch.mode == "target-verify",
            is_draft_extend_v2=lambda: batch.mode == "draft-extend",
            is_draft_extend=lambda include_v2=False: batch.mode == "draft-extend" and include_v2,
            is_idle=lambda: batch.mode == "idle",
            is_decode_or_idle=lambda: batch.mode in ("idle", "decode"),
        ),
        num_token_non_padded_cpu=batch.real,
        _original_num_tokens=None,
    )


def snapshot(metadata: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Copies of everything that the metadata holds, and the objects themselves."""
    held = {f"metadata.{name}": value for name, value in vars(metadata).items()}
    held |= {f"attn_metadata.{name}": value for name, value in vars(metadata.attn_metadata).items()}
    copies = {
        name: value.clone() if isinstance(value, torch.Tensor) else list(value) if isinstance(value, list) else value
        for name, value in held.items()
    }
    return copies, held
