"""Shapes of the models that the HiSparse scripts run with random weights, and what their KV takes.

All layers are dense: sparse attention is what is compared. `deepseek` has an indexer in each layer, `glm` shares
selections as GLM-5.2 does (layers 0, 1, 2, 6, 10 and so on have an indexer; public configs say 4 and offset 3).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCABULARY = 4096
BLOCK = 64
ROW_BYTES = {"fp8": 656, "auto": 1152}  # of one token in one layer; auto is bf16
INDEXER_BYTES = 132  # of one token in one layer that has an indexer: 128 fp8 values and a scale

_COMMON = {
    "torch_dtype": "bfloat16",
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "index_head_dim": 128,
    "index_topk": 2048,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "vocab_size": VOCABULARY,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "max_position_embeddings": 202752,
}
DEEPSEEK: dict[str, Any] = _COMMON | {
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "hidden_size": 2048,
    "intermediate_size": 4096,
    "moe_intermediate_size": 512,
    "num_hidden_layers": 4,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "index_n_heads": 64,
    "rope_theta": 10000,
    "rms_norm_eps": 1e-6,
}
GLM: dict[str, Any] = _COMMON | {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "hidden_size": 2048,
    "intermediate_size": 4096,
    "moe_intermediate_size": 512,
    "num_hidden_layers": 7,
    "q_lora_rank": 2048,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "index_n_heads": 32,
    "index_topk_freq": 4,
    "index_skip_topk_offset": 3,
    "indexer_rope_interleave": True,
    "rope_interleave": True,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    "rms_norm_eps": 1e-5,
}
# GLM-5's layer. Its MLP reads as much as what one rank of EP64 reads of a MoE layer: 4 of 256 experts and the shared
# one, each 3 x 6144 x 2048. No all-to-all and no routing, so a step of stock is shorter than in service.
GLM5: dict[str, Any] = GLM | {"hidden_size": 6144, "intermediate_size": 5 * 2048, "moe_intermediate_size": 2048}
MODELS = {"deepseek": DEEPSEEK, "glm": GLM, "glm5": GLM5}


def shaped(name: str, layers: int | None = None, heads: int | None = None, **more: Any) -> dict[str, Any]:
    """The config of a model; *layers* and *heads* where not its own, *more* are fields of the config."""
    model = MODELS[name] | more
    if layers is not None:
        model |= {"num_hidden_layers": layers}
    if heads is not None:
        model |= {"num_attention_heads": heads, "num_key_value_heads": heads}
    return model | {"first_k_dense_replace": model["num_hidden_layers"]}


def indexers(model: dict[str, Any]) -> int:
    """Layers that have an indexer, by the rule of vLLM 0.24.0 (`DeepseekV2MLAAttention`)."""
    every, offset = model.get("index_topk_freq", 1), model.get("index_skip_topk_offset", 2)
    return sum(max(layer - offset + 1, 0) % every == 0 for layer in range(model["num_hidden_layers"]))


def mla_bytes(model: dict[str, Any], dtype: str) -> int:
    """Bytes of a token's MLA KV in all layers: what HiSparse keeps on the host."""
    return int(model["num_hidden_layers"]) * ROW_BYTES[dtype]


def indexer_bytes(model: dict[str, Any]) -> int:
    """Bytes of a token's indexer KV in all layers: on the GPU in any case."""
    return indexers(model) * INDEXER_BYTES


def blocks_of(tokens: int) -> int:
    """Blocks that a request of *tokens* fills."""
    return -(-tokens // BLOCK)


def pool_gib(blocks: int, model: dict[str, Any], dtype: str) -> float:
    """The host_pool_gib that gives exactly *blocks* blocks: half a block more, so that rounding takes none."""
    return (blocks + 0.5) * BLOCK * mla_bytes(model, dtype) / 2**30


def write(model: dict[str, Any], folder: Path) -> str:
    """Write a model without weights; its path for the engine."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model))
    return str(folder)
