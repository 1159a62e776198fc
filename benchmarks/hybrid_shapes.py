"""Shapes of models with linear states beside attention, for random weights, with a part of their vocabularies."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, PreTrainedConfig

_SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3.5-0.8B": (
        "qwen3_5_text",
        {
            "vocab_size": 62080,
            "hidden_size": 1024,
            "intermediate_size": 3584,
            "num_hidden_layers": 24,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 16,
        },
    ),
    "LFM2-350M": (
        "lfm2",
        {
            "vocab_size": 65536,
            "hidden_size": 1024,
            "intermediate_size": 6656,
            "num_hidden_layers": 16,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        },
    ),
    "Falcon-H1-0.5B": (
        "falcon_h1",
        {
            "vocab_size": 32784,
            "hidden_size": 1024,
            "intermediate_size": 2048,
            "num_hidden_layers": 36,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "mamba_d_ssm": 1536,
            "mamba_n_heads": 24,
            "mamba_d_head": 64,
            "mamba_d_state": 128,
            "mamba_n_groups": 1,
            "mamba_chunk_size": 128,
            "mamba_rms_norm": False,
        },
    ),
}


def configurations() -> dict[str, PreTrainedConfig]:
    """By name; output layers have the embedding's weights."""
    return {
        name: AutoConfig.for_model(family, **shape, tie_word_embeddings=True)
        for name, (family, shape) in _SHAPES.items()
    }
