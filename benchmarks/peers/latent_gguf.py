"""GGUF files of random blocks in the shapes of models with latent attention, whose caches in llama.cpp are latents."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from random_blocks import Tensors, mlp, norms, tell_shape, tell_tokens, write_random

_CONSTANT = {"norm.weight": 1.0, "exp_probs_b.bias": 0.0}
"""The values of new models of transformers. Random biases would choose the same experts for all tokens."""


def write_latent_gguf(path: Path, config: PreTrainedConfig) -> None:
    """Writes the file of a configuration's shape."""
    write_random(
        path,
        "deepseek2",
        partial(_tell, config=config),
        tensors_of(config),
        in_fp32=("ffn_gate_inp.weight",),
        constant=_CONSTANT,
    )


def tensors_of(config: PreTrainedConfig) -> Tensors:
    """All tensors of a model."""
    found = {"token_embd.weight": (config.vocab_size, config.hidden_size), **norms(config.hidden_size, "output_norm")}
    for layer in range(config.num_hidden_layers):
        of_layer = {**_attention(config), **_fed_forward(config, layer)}
        found |= {f"blk.{layer}.{name}": shape for name, shape in of_layer.items()}
    return found


def _tell(writer: Any, config: PreTrainedConfig) -> None:
    tell_shape(writer, config)
    writer.add_feed_forward_length(config.intermediate_size)
    _tell_latents(writer, config)
    _tell_experts(writer, config)
    tell_tokens(writer, config.vocab_size)


def _tell_latents(writer: Any, config: PreTrainedConfig) -> None:
    """Tells the one head that is cached, and those that its latents expand to."""
    writer.add_head_count_kv(1)
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
    writer.add_value_length(config.kv_lora_rank)
    writer.add_key_length_mla(_query(config))
    writer.add_value_length_mla(config.v_head_dim)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_q_lora_rank(config.q_lora_rank or 0)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)


def _tell_experts(writer: Any, config: PreTrainedConfig) -> None:
    """Tells numbers of experts; llama.cpp asks for some of them where a model has none, too."""
    import gguf

    writer.add_leading_dense_block_count(_dense(config))
    writer.add_expert_shared_count(getattr(config, "n_shared_experts", 0))
    writer.add_expert_feed_forward_length(getattr(config, "moe_intermediate_size", config.intermediate_size))
    if _dense(config) == config.num_hidden_layers:
        return
    by_sigmoid = config.model_type == "glm4_moe_lite"
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(config.norm_topk_prob)
    writer.add_expert_gating_func(
        gguf.ExpertGatingFuncType.SIGMOID if by_sigmoid else gguf.ExpertGatingFuncType.SOFTMAX
    )


def _query(config: PreTrainedConfig) -> int:
    """Numbers of a head's query."""
    return config.qk_nope_head_dim + config.qk_rope_head_dim


def _dense(config: PreTrainedConfig) -> int:
    """Layers without experts, which come first."""
    if config.model_type == "glm4_moe_lite":
        return config.mlp_layer_types.count("dense")
    return getattr(config, "first_k_dense_replace", config.num_hidden_layers)


def _attention(config: PreTrainedConfig) -> Tensors:
    width, heads, latent = config.hidden_size, config.num_attention_heads, config.kv_lora_rank
    return {
        **norms(width, "attn_norm"),
        **_queries(config),
        "attn_kv_a_mqa.weight": (latent + config.qk_rope_head_dim, width),
        **norms(latent, "attn_kv_a_norm"),
        "attn_k_b.weight": (heads, latent, config.qk_nope_head_dim),
        "attn_v_b.weight": (heads, config.v_head_dim, latent),
        "attn_output.weight": (width, heads * config.v_head_dim),
    }


def _queries(config: PreTrainedConfig) -> Tensors:
    width, rank, numbers = config.hidden_size, config.q_lora_rank, config.num_attention_heads * _query(config)
    if rank is None:
        return {"attn_q.weight": (numbers, width)}
    return {"attn_q_a.weight": (rank, width), **norms(rank, "attn_q_a_norm"), "attn_q_b.weight": (numbers, rank)}


def _fed_forward(config: PreTrainedConfig, layer: int) -> Tensors:
    width = config.hidden_size
    if layer < _dense(config):
        return {**norms(width, "ffn_norm"), **mlp(width, config.intermediate_size)}
    experts, inner = config.n_routed_experts, config.moe_intermediate_size
    found = {
        **norms(width, "ffn_norm"),
        "ffn_gate_inp.weight": (experts, width),
        **{name: (experts, *shape) for name, shape in mlp(width, inner, "_exps").items()},
        **mlp(width, config.n_shared_experts * inner, "_shexp"),
    }
    if config.model_type == "glm4_moe_lite":
        found["exp_probs_b.bias"] = (experts,)
    return found
