"""Sparse MLA attention from hot buffers: decode reads hot rows, prefill reads rows staged from the host pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .config import active


@dataclass
class Step:
    """A batch as hot KV sees it: its first *decodes* tokens are decoded, one for each of the first rows.

    seq_lens int32, slots int64 and table int32 are of those rows; *kernel* is what the fp8 decode kernel needs and
    *prefill* how the rest is cut into chunks that fit the workspace (stock metadata, None where there is none).
    """

    decodes: int
    seq_lens: torch.Tensor
    slots: torch.Tensor
    table: torch.Tensor
    kernel: Any
    prefill: Any


def plan_step(builder: Any, common: Any, split: Any) -> Step | None:
    """The step of *common* (CommonAttentionMetadata); None without hot KV. *split*: the builder's fp8 metadata, if any.

    Runs outside graphs. RuntimeError where a decode row has more than one token.
    """
    if not active(builder.vllm_config):
        return None
    if split is None:
        split = builder._build_fp8_separate_prefill_decode(common)
    rows = split.num_decodes
    if split.num_decode_tokens != rows:
        raise RuntimeError(f"HiSparse: {split.num_decode_tokens} tokens in {rows} decode rows, one each is supported")
    context = builder.vllm_config.compilation_config.static_forward_context
    context[builder.layer_names[0]].impl.hot_kv.owner.mark_decodes(rows)
    return Step(
        decodes=rows,
        seq_lens=common.seq_lens[:rows],
        slots=common.slot_mapping[:rows],
        table=common.block_table_tensor[:rows],
        kernel=split.decode.kernel_metadata if split.decode is not None else None,
        prefill=split.prefill,
    )


def attend(impl: Any, q: torch.Tensor, cache: torch.Tensor, topk: torch.Tensor, metadata: Any) -> torch.Tensor:
    """Attention output [T, heads, 512] for q [T, heads, 576]; *cache* is the layer's host pool, topk int32 [T, K]."""
    step = metadata.hot_kv
    decodes = step.decodes
    if decodes == q.shape[0]:
        return _decode(impl, q, cache, topk, step)
    out = q.new_empty((metadata.num_actual_tokens, impl.num_heads, impl.kv_lora_rank))
    if decodes:
        out[:decodes] = _decode(impl, q[:decodes], cache, topk[:decodes], step)
    index, lengths = _staged_index(topk, metadata)
    for chunk in step.prefill.chunks:
        rows = chunk.tokens_slice
        staged = impl.prefill_bf16_workspace[: chunk.chunk_tot_seqlen]
        _stage(impl, cache, staged, chunk)
        out[rows] = impl._bf16_flash_mla_kernel(q[rows], staged, index[rows], lengths[rows])
    return out


def _decode(impl: Any, q: torch.Tensor, cache: torch.Tensor, topk: torch.Tensor, step: Step) -> torch.Tensor:
    layer = impl.hot_kv
    index, lengths = layer.resolve(topk, step.seq_lens, step.slots, step.table, cache)
    if impl.kv_cache_dtype == "fp8_ds_mla":
        out, _ = impl._fp8_flash_mla_kernel(
            q=q.unsqueeze(1),
            kv_c_and_k_pe_cache=layer.hot,
            topk_indices=index.unsqueeze(1),
            kernel_metadata=step.kernel,
        )
        return out.squeeze(1)
    return impl._bf16_flash_mla_kernel(q, layer.hot, index, lengths)


def _staged_index(topk: torch.Tensor, metadata: Any) -> tuple[torch.Tensor, torch.Tensor]:
    from vllm.v1.attention.backends.mla.sparse_utils import triton_convert_req_index_to_global_index

    prefill = metadata.hot_kv.prefill
    return triton_convert_req_index_to_global_index(
        metadata.req_id_per_token,
        metadata.block_table,
        topk,
        BLOCK_SIZE=metadata.block_size,
        NUM_TOPK_TOKENS=topk.shape[1],
        HAS_PREFILL_WORKSPACE=True,
        prefill_workspace_request_ids=prefill.request_ids,
        prefill_workspace_starts=prefill.workspace_starts,
        return_valid_counts=True,
    )


def _stage(impl: Any, cache: torch.Tensor, staged: torch.Tensor, chunk: Any) -> None:
    """Bring the whole contexts of a chunk's requests to the GPU, one after the other, as bf16."""
    from vllm import _custom_ops as ops

    count = len(chunk.block_table)
    if impl.kv_cache_dtype == "fp8_ds_mla":
        ops.cp_gather_and_upconvert_fp8_kv_cache(
            cache, staged, chunk.block_table, chunk.seq_lens, chunk.workspace_starts, count
        )
        return
    ends = torch.zeros(count + 1, dtype=torch.int32, device=chunk.seq_lens.device)
    torch.cumsum(chunk.seq_lens, 0, dtype=torch.int32, out=ends[1:])
    ops.cp_gather_cache(cache, staged, chunk.block_table, ends, count)
