"""Stand-ins for what is around the patched files: a configuration, and the engine's GPU kernels as plain torch."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch

TOPK, SLOTS, LIMIT, SEATS, TOKENS = 8, 12, 320, 4, 512


def config(hisparse: dict[str, Any] | None, **more: Any) -> SimpleNamespace:
    """A VllmConfig as far as the patch looks at it; *more* replaces parts by dotted name with '__' for the dot."""
    made = SimpleNamespace(
        attention_config=SimpleNamespace(hisparse_config=hisparse, backend=None),
        model_config=SimpleNamespace(
            hf_config=SimpleNamespace(index_topk=TOPK, model_type="deepseek_v32"),
            max_model_len=LIMIT,
            enable_sleep_mode=False,
            original_max_model_len=LIMIT,
        ),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            use_ubatching=False,
            local_world_size=1,
            data_parallel_size_local=1,
        ),
        cache_config=SimpleNamespace(cache_dtype="auto", num_gpu_blocks_override=None),
        scheduler_config=SimpleNamespace(
            scheduler_reserve_full_isl=True, max_num_seqs=SEATS, max_num_batched_tokens=TOKENS
        ),
        compilation_config=SimpleNamespace(cudagraph_mode=None, static_forward_context={}),
        speculative_config=None,
        kv_transfer_config=None,
        use_v2_model_runner=False,
        shutdown_timeout=0,
    )
    for name, value in more.items():
        *path, last = name.split("__")
        place: Any = made
        for part in path:
            place = getattr(place, part)
        setattr(place, last, value)
    return made


class Unpinned:
    """torch without pinned memory, which needs a device."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def zeros(self, *size: Any, pin_memory: bool = False, **more: Any) -> Any:
        return torch.zeros(*size, **more)


class Generic:
    def __class_getitem__(cls, item: Any) -> type:
        return cls


class StockImpl(Generic):
    """What the backend's class inherits: the stock write, through the op."""

    def do_kv_cache_update(self, kv_c, k_pe, cache, slots, kv_cache_dtype, k_scale):
        if cache.numel() == 0:
            return
        concat_and_cache_mla(kv_c, k_pe.squeeze(1), cache, slots.flatten(), kv_cache_dtype, k_scale)


def as_float(rows):
    """Rows of a cache, bf16 or 656 bytes, as the 576 values that attention reads."""
    return rows.float() if rows.dtype == torch.bfloat16 else rows[..., :576].float() / 8 - 16


def concat_and_cache_mla(kv_c, k_pe, kv_cache, slot_mapping, kv_cache_dtype, scale):
    flat = kv_cache.view(-1, kv_cache.shape[-1])
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            row = torch.cat([kv_c[token], k_pe[token]]).float()
            if flat.dtype == torch.bfloat16:
                flat[slot] = row.to(torch.bfloat16)
            else:
                flat[slot, :576] = ((row + 16) * 8).round().clamp(0, 255).to(torch.uint8)


def _gather(cache, dst, table, lengths, starts):
    flat = cache.view(-1, cache.shape[-1])
    for request, (length, start) in enumerate(zip(lengths, starts, strict=True)):
        positions = torch.arange(length)
        rows = table[request][positions // 64].long() * 64 + positions % 64
        dst[start : start + length] = as_float(flat[rows]).to(dst.dtype)


def cp_gather_cache(src_cache, dst, block_table, cu_seq_lens, batch_size, seq_starts=None):
    ends = cu_seq_lens.tolist()
    assert len(ends) == batch_size + 1
    lengths = [end - start for start, end in pairwise(ends)]
    _gather(src_cache, dst, block_table, lengths, ends[:-1])


def cp_gather_and_upconvert(src_cache, dst, block_table, seq_lens, workspace_starts, batch_size):
    assert batch_size == len(seq_lens)
    _gather(src_cache, dst, block_table, seq_lens.tolist(), workspace_starts.tolist())


def convert(req_id, table, topk, BLOCK_SIZE=64, NUM_TOPK_TOKENS=0, HAS_PREFILL_WORKSPACE=False, **more):
    """Positions to rows of the cache, or of the workspace for tokens of a prefill; -1 stays."""
    asked = topk.clamp(min=0).long()
    rows = table[req_id.long()].long().gather(1, asked // BLOCK_SIZE) * BLOCK_SIZE + asked % BLOCK_SIZE
    if HAS_PREFILL_WORKSPACE:
        request = more["prefill_workspace_request_ids"].long()
        staged = more["prefill_workspace_starts"].long()[request.clamp(min=0)][:, None] + asked
        rows = torch.where((request >= 0)[:, None], staged, rows)
    rows = torch.where(topk >= 0, rows, -1).to(torch.int32)
    lengths = (topk >= 0).sum(1).to(torch.int32)
    return (rows, lengths) if more.get("return_valid_counts") else rows


def _attention(q, rows, index):
    """[T, heads, 512] for q [T, heads, 576]: softmax over the rows that *index* names, in the order of its columns."""
    out = torch.zeros(*q.shape[:2], 512)
    for token in range(q.shape[0]):
        chosen = index[token][index[token] >= 0].long()
        keys = as_float(rows[chosen])
        weights = torch.softmax(q[token].float() @ keys.T, dim=-1)
        out[token] = weights @ keys[:, :512]
    return out.to(torch.bfloat16)


def flash_mla_sparse_fwd(q, kv, indices, scale, topk_length=None):
    return (_attention(q, kv.view(-1, kv.shape[-1]), indices.view(q.shape[0], -1)),)


def flash_mla_with_kvcache(q, k_cache, indices, **more):
    flat = k_cache.view(-1, k_cache.shape[-1])
    tokens = q.view(-1, *q.shape[2:])
    out = _attention(tokens, flat, indices.view(tokens.shape[0], -1))
    return out.view(*q.shape[:3], 512), None
