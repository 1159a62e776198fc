"""Shapes of models with latent attention, for random weights, with a part of their vocabularies and layers."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, PreTrainedConfig

_COMMON: dict[str, Any] = {
    "vocab_size": 65536,
    "max_position_embeddings": 32768,
    "bos_token_id": None,
    "eos_token_id": None,
}
_SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "Youtu-2B, 16 layers": (
        "youtu",
        {
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 16,
            "num_attention_heads": 16,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
        },
    ),
    "GLM-4.7-Flash, 6 layers": (
        "glm4_moe_lite",
        {
            "hidden_size": 2048,
            "intermediate_size": 10240,
            "num_hidden_layers": 6,
            "num_attention_heads": 20,
            "num_key_value_heads": 20,
            "q_lora_rank": 768,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 192,
            "v_head_dim": 256,
            "n_routed_experts": 64,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1536,
            "n_shared_experts": 1,
        },
    ),
    "DeepSeek-V2-Lite, 6 layers": (
        "deepseek_v2",
        {
            "hidden_size": 2048,
            "intermediate_size": 10944,
            "num_hidden_layers": 6,
            "num_attention_heads": 16,
            "q_lora_rank": None,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "n_routed_experts": 64,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 1408,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
        },
    ),
}


def configurations() -> dict[str, PreTrainedConfig]:
    """By name; output layers have the embedding's weights."""
    return {
        name: AutoConfig.for_model(family, **_COMMON, **shape, tie_word_embeddings=True)
        for name, (family, shape) in _SHAPES.items()
    }
