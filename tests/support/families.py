"""Small, randomly initialized models of many families, built from configuration alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

VOCABULARY = 97
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
MOE: dict[str, Any] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
HYBRID_TYPES = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
SLIDING: dict[str, Any] = {"sliding_window": 8, "num_hidden_layers": 4, "layer_types": HYBRID_TYPES}
SHARING: dict[str, Any] = {
    "num_hidden_layers": 6,
    "num_kv_shared_layers": 2,
    "sliding_window": 8,
    "layer_types": [*HYBRID_TYPES, "sliding_attention", "full_attention"],
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 8,
}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": None},
    "mixtral": {**MOE, "sliding_window": None},
    "qwen2": {},
    "qwen2_moe": MOE,
    "qwen3": {},
    "qwen3_moe": MOE,
    "gemma": {},
    "gemma2": {**SLIDING, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0},
    "gemma3_text": {**SLIDING, "query_pre_attn_scalar": 16},
    "gemma3n_text": {
        **SHARING,
        "altup_num_inputs": 2,
        "laurel_rank": 8,
        "intermediate_size": [96] * 6,
        "activation_sparsity_pattern": [0.0] * 6,
    },
    "gemma4_text": {**SHARING, "global_head_dim": 32},
    "phi": {},
    "phi3": {},
    "gpt_neox": {},
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512},
    "stablelm": {},
    "olmo2": {},
    "olmo3": SLIDING,
    "cohere": {},
    "cohere2": SLIDING,
    "granite": {},
    "granitemoe": MOE,
    "smollm3": {"num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 0]},
    "starcoder2": {},
    "glm4": {},
    "exaone4": SLIDING,
    "nemotron": {},
    "helium": {},
    "ernie4_5": {},
    "seed_oss": {},
    "arcee": {},
    "apertus": {},
    "gpt_oss": {**MOE, **SLIDING},
    "llama4_text": {
        **MOE,
        "intermediate_size_mlp": 96,
        "num_hidden_layers": 4,
        "attention_chunk_size": 16,
        "layer_types": ["chunked_attention", "full_attention"] * 2,
        "no_rope_layers": [1, 0, 1, 0],
    },
    "qwen3_next": {
        **MOE,
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
    "lfm2": {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2},
    "falcon_h1": {
        "mamba_d_ssm": 64,
        "mamba_n_heads": 4,
        "mamba_d_head": 16,
        "mamba_d_state": 16,
        "mamba_n_groups": 1,
        "mamba_chunk_size": 16,
    },
}
"""Model type -> what its configuration needs besides COMMON."""

MLA: dict[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "first_k_dense_replace": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
}
LATENT: dict[str, dict[str, Any]] = {
    "deepseek_v2": {**MLA, "q_lora_rank": None, "topk_method": "greedy"},
    "deepseek_v3": MLA,
    "glm4_moe_lite": MLA,
    "minicpm3": MLA,
    "youtu": MLA,
    "longcat_flash": {
        **MLA,
        "num_layers": 2,
        "ffn_hidden_size": 96,
        "expert_ffn_hidden_size": 32,
        "moe_topk": 2,
        "zero_expert_num": 1,
    },
    "kimi_linear": {
        **MLA,
        "num_hidden_layers": 4,
        "linear_head_dim": 16,
        "linear_num_heads": 4,
        "layer_types": ["linear_attention", "full_attention"] * 2,
    },
}
"""The same for families whose heads share one latent per token (multi-head latent attention)."""

LINEAR: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
STATES: dict[str, dict[str, Any]] = {
    "qwen3_5_text": LINEAR,
    "qwen3_5_moe_text": {**MOE, **LINEAR},
    "olmo_hybrid": {**LINEAR, "linear_num_key_heads": 4},
    "bailing_hybrid": {**MLA, "num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention"] * 2},
    "granitemoehybrid": {
        **MOE,
        "num_hidden_layers": 4,
        "layer_types": ["mamba", "attention"] * 2,
        "mamba_d_state": 16,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_chunk_size": 16,
        "shared_intermediate_size": 32,
    },
    "nemotron_h": {
        "num_hidden_layers": 4,
        "hybrid_override_pattern": "M*M-",
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 1,
        "chunk_size": 16,
    },
}
"""Further families with linear states beside full attention."""

ZAYA: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["hybrid_sliding", "hybrid"] * 2,
    "sliding_window": 8,
    "num_experts": 4,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 32,
    "router_hidden_size": 16,
}
"""Options of Zaya besides COMMON, for windows beside linear states."""

STARTING_ANEW: dict[str, dict[str, Any]] = {
    "jamba": {
        "num_hidden_layers": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 4,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
    },
    "zamba": {
        "num_hidden_layers": 8,
        "layers_block_type": ["linear_attention", "hybrid"] * 4,
        "attention_head_dim": 32,
        "n_mamba_heads": 2,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
    },
}
"""Families whose recurrent layers go on from their states in passes of one token only."""

LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
    "original_max_position_embeddings": 64,
    "factor": 16.0,
}
"""Rotary frequencies of models with heads of 16 that change with the 65th position."""


def build(family: str, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A small random model of a family, in fp32, evaluating; weights large enough for attention to be uneven."""
    options = {**COMMON, **(FAMILIES | LATENT | STATES).get(family, {}), **overrides}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = AutoConfig.for_model(family, **options)
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    return sharpen(model)


def sharpen(model: PreTrainedModel, gain: float = 4.0) -> PreTrainedModel:
    """Scales query projections up, and those of latents.

    Freshly initialized models attend almost uniformly, which would hide errors.
    """
    for name, parameter in model.named_parameters():
        if any(part in name for part in ("q_proj", "q_b_proj", "kv_b_proj", "qkv_proj", "query_key_value", "c_attn")):
            parameter.data.mul_(gain)
    return model.eval()


def prompt(rows: int = 1, length: int = 40, seed: int = 1) -> torch.Tensor:
    """Random token ids [rows, length]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCABULARY, (rows, length), generator=generator)


def vision_models() -> dict[str, Callable[[], PreTrainedModel]]:
    """Vision-language wrappers around small text models."""
    return {
        "llava": _llava,
        "gemma3": _gemma3,
        "mistral3": _mistral3,
        "qwen2_5_vl": _qwen2_5_vl,
        "qwen3_vl": _qwen3_vl,
        "internvl": _internvl,
    }


def build_any(name: str) -> PreTrainedModel:
    """The small model of a family or of a vision-language wrapper."""
    return vision_models()[name]() if name in vision_models() else build(name)


TOWER = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
"""A vision tower, as most families call its parts."""
QWEN_TOWER = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 64,
    "patch_size": 8,
}
SECTIONS = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
"""Rotary angles that count time, height and width of images apart."""


def _wrapped(family: str, vision: dict[str, Any], text: dict[str, Any], **facts: Any) -> PreTrainedModel:
    """A text model with a vision tower."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = AutoConfig.for_model(family, vision_config=vision, text_config={**COMMON, **text}, **facts)
        torch.manual_seed(0)
        return sharpen(AutoModelForImageTextToText.from_config(config))


def _llava() -> PreTrainedModel:
    vision = {**TOWER, "model_type": "clip_vision_model", "projection_dim": 32}
    return _wrapped("llava", vision, {"model_type": "llama"}, image_token_index=96, image_seq_length=4)


def _gemma3() -> PreTrainedModel:
    text = {**FAMILIES["gemma3_text"], "model_type": "gemma3_text"}
    tokens = {"image_token_index": 96, "boi_token_index": 95, "eoi_token_index": 94}
    return _wrapped("gemma3", {**TOWER, "model_type": "siglip_vision_model"}, text, mm_tokens_per_image=4, **tokens)


def _mistral3() -> PreTrainedModel:
    text = {**FAMILIES["mistral"], "model_type": "mistral"}
    return _wrapped(
        "mistral3", {**TOWER, "image_size": 32, "model_type": "pixtral", "head_dim": 16}, text, image_token_index=96
    )


def _qwen2_5_vl() -> PreTrainedModel:
    vision = {**QWEN_TOWER, "fullatt_block_indexes": [1], "window_size": 32}
    return _wrapped("qwen2_5_vl", vision, {"rope_parameters": SECTIONS}, image_token_id=96, video_token_id=95)


def _qwen3_vl() -> PreTrainedModel:
    vision = {**QWEN_TOWER, "deepstack_visual_indexes": [0], "num_position_embeddings": 16}
    return _wrapped("qwen3_vl", vision, {"rope_parameters": SECTIONS}, image_token_id=96, video_token_id=95)


def _internvl() -> PreTrainedModel:
    vision = {**TOWER, "image_size": [16, 16], "patch_size": [8, 8]}
    return _wrapped("internvl", vision, {"model_type": "qwen2"}, image_token_id=96, image_seq_length=4)


EVERY = [*FAMILIES, *vision_models()]
"""Every name that `build_any` takes."""
ONE_AXIS = [family for family in EVERY if family not in ("qwen2_5_vl", "qwen3_vl")]
"""Families whose rotary positions are numbers; those of the others have several axes, which winnow cannot undo."""
