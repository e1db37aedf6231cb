"""A bench for the real metadata of a forward pass: the tree's own text on the CPU, kernels replaced.

`DeepseekSparseAttnBackend.init_forward_metadata` is executed as it stands, with a batch whose lengths are on a device
(device.py) and, or not, mirrored on the host. Replaced are the triton kernel that expands lengths, and what only CUDA,
context parallelism or key pooling uses.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from packaging.version import Version

from graftwork.harness.isolate import load_class, load_function, load_module, read_engine_file

DSA = "sglang/srt/layers/attention"
DRAFT_TOKENS, WIDTH, TOPK, PAGE = 4, 256, 8, 64

device_module = load_module(Path(__file__).with_name("device.py"), "dsa_dp_sync_device")
Device, Deadlock, OnDevice = device_module.Device, device_module.Deadlock, device_module.OnDevice


class Mode(Enum):
    """The questions that the engine asks of a ForwardMode, for the modes that a DP rank has while others draft."""

    DECODE, IDLE, TARGET_VERIFY, DRAFT_EXTEND_V2, EXTEND = range(5)

    def __getattr__(self, question: str) -> Any:
        if question == "is_decode_or_idle":
            return lambda: self in (Mode.DECODE, Mode.IDLE)
        if question == "is_extend_without_speculative":
            return lambda: self is Mode.EXTEND
        if question.startswith("is_") and question[3:].upper() in Mode.__members__:
            return lambda: self is Mode[question[3:].upper()]
        raise AttributeError(question)


class Bench:
    """One tree's metadata code and one device."""

    def __init__(self, tree: Path, version: Version) -> None:
        self.tree, self.version, self.device = tree, version, Device()
        self.table = torch.arange(16 * WIDTH, dtype=torch.int32).reshape(16, WIDTH)
        self.backend_class = self._backend_class()

    def batch(self, mode: Mode, lengths: list[int], *, mirror: bool) -> SimpleNamespace:
        """A ForwardBatch of requests with *lengths* tokens; *mirror*: the host knows them too, as an idle rank does."""
        count = len(lengths)
        extend = DRAFT_TOKENS if mode is Mode.DRAFT_EXTEND_V2 else 1
        before = [length - extend for length in lengths]
        return SimpleNamespace(
            forward_mode=mode,
            batch_size=count,
            seq_lens=self.device.holds(lengths, torch.int64),
            seq_lens_cpu=torch.tensor(lengths, dtype=torch.int64) if mirror else None,
            seq_lens_sum=sum(lengths) if mirror else None,
            req_pool_indices=self.device.holds([3 + 2 * row for row in range(count)], torch.int64),
            extend_seq_lens=self.device.holds([extend] * count, torch.int32),
            extend_seq_lens_cpu=[extend] * count,
            extend_num_tokens=extend * count,
            extend_prefix_lens=self.device.holds(before, torch.int32),
            extend_prefix_lens_cpu=before if mirror else None,
            global_num_tokens_cpu=None,
        )

    def metadata(self, batch: SimpleNamespace) -> SimpleNamespace:
        """What the tree's `init_forward_metadata` makes of *batch*."""
        backend = self.backend_class()
        backend.init_forward_metadata(batch)
        return backend.forward_metadata

    def skips(self, batch: SimpleNamespace, *, hip: bool = True) -> bool:
        """Whether the tree's indexer skips the logits of *batch* (0.5.18 on also asks in eager decode)."""
        names = {"_is_hip": hip, "get_is_capture_mode": lambda: False}
        path = read_engine_file(self.tree, f"{DSA}/dsa/dsa_indexer.py")
        question = load_function(path, "Indexer._should_skip_logits_computation", names)
        return bool(question(SimpleNamespace(index_topk=TOPK), batch))

    def _backend_class(self) -> type:
        path = read_engine_file(self.tree, f"{DSA}/dsa_backend.py")
        members = ["init_forward_metadata", "_transform_table_1_to_real", "_cal_indexer_k_start_end"]
        loaded = load_class(path, "DeepseekSparseAttnBackend", members, self._names())
        table = SimpleNamespace(req_to_token=self.table)
        given = {
            "speculative_num_draft_tokens": DRAFT_TOKENS,
            "req_to_token_pool": table,
            "req_to_token": self.table,
            "dsa_decode_impl": "tilelang",
            "dsa_prefill_impl": "tilelang",
            "use_mha": False,
            "dsa_index_topk": TOPK,
            "dsa_index_kpool": 1,
            "real_page_size": PAGE,
            "physical_page_size": PAGE,
            "_kv_shard_pool": None,
            "device": "cpu",
            "set_dsa_prefill_impl": lambda self, batch: None,
            "get_topk_transform_method": lambda self, mode: "paged",
            "get_device_int32_arange": lambda self, length: torch.arange(length, dtype=torch.int32),
            "_build_topk_v2_plan": lambda self, lengths: None,
            "_init_kpool_metadata": lambda self, metadata, batch, **more: metadata,
        }
        for name, value in given.items():
            setattr(loaded, name, value)
        return loaded

    def _names(self) -> dict[str, Any]:
        """The globals of dsa_backend.py that the function uses, in every release."""
        precompute = read_engine_file(self.tree, f"{DSA}/dsa/dsa_backend_mtp_precompute.py")
        return {
            "torch": torch,
            "compute_cu_seqlens": load_function(precompute, "compute_cu_seqlens", {"torch": torch}),
            "compute_dsa_seqlens": lambda original_seq_lens, dsa_index_topk, **more: original_seq_lens.clamp(
                max=dsa_index_topk
            ),
            "pad_dsa_cache_seqlens": lambda batch, lengths: lengths,
            "seqlens_expand_triton": expand,
            "is_cuda": lambda: False,
            "_is_xpu": False,
            "DSAMetadata": SimpleNamespace,
            "_KPoolForwardInputs": SimpleNamespace,
            "TopkTransformMethod": SimpleNamespace(RAGGED="ragged", PAGED="paged"),
        }


def expand(extend: Any, lengths: Any, total: int, longest: int) -> Any:
    """What the triton kernel writes: for each request the lengths at which each of its new tokens looks back."""
    steps = torch.arange(1, longest + 1, dtype=torch.int32)
    expanded = (lengths[:, None] - longest + steps[None, :]).reshape(-1)
    assert expanded.shape[0] == total
    return expanded


def same(one: Any, other: Any) -> bool:
    """Equal values; tensors by content, wherever they are."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one.as_subclass(torch.Tensor), other.as_subclass(torch.Tensor))
    return bool(one == other)
