"""GGUF files of random blocks in the shapes of models with linear states."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from random_blocks import Tensors, mlp, norms, tell_shape, tell_tokens, write_random

_IN_FP32 = ("ssm_conv1d.weight", "shortconv.conv.weight", "ssm_a", "ssm_d")


def write_hybrid_gguf(path: Path, config: PreTrainedConfig) -> None:
    """Writes the file of a configuration's shape. Raises KeyError for another family."""
    architecture, _, _ = _FAMILIES[config.model_type]
    write_random(path, architecture, partial(_tell, config=config), tensors_of(config), in_fp32=_IN_FP32)


def tensors_of(config: PreTrainedConfig) -> Tensors:
    """All tensors of a model. Raises KeyError for another family."""
    architecture, _, of_layer = _FAMILIES[config.model_type]
    norm = "token_embd_norm" if architecture == "lfm2" else "output_norm"
    found = {"token_embd.weight": (config.vocab_size, config.hidden_size), f"{norm}.weight": (config.hidden_size,)}
    for layer in range(config.num_hidden_layers):
        found |= {f"blk.{layer}.{name}": shape for name, shape in of_layer(config, layer).items()}
    return found


def _tell(writer: Any, config: PreTrainedConfig) -> None:
    _, tell, _ = _FAMILIES[config.model_type]
    tell_shape(writer, config)
    writer.add_key_length(_head_dim(config))
    writer.add_value_length(_head_dim(config))
    tell(writer, config)
    tell_tokens(writer, config.vocab_size)


def _head_dim(config: PreTrainedConfig) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _tell_qwen(writer: Any, config: PreTrainedConfig) -> None:
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(64)
    writer.add_rope_dimension_sections([11, 11, 10, 0])
    values = config.linear_num_value_heads
    _tell_states(writer, 4, values * config.linear_value_head_dim, config.linear_key_head_dim, values)
    writer.add_ssm_group_count(config.linear_num_key_heads)


def _tell_falcon(writer: Any, config: PreTrainedConfig) -> None:
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    _tell_states(writer, config.mamba_d_conv, config.mamba_d_ssm, config.mamba_d_state, config.mamba_n_heads)
    writer.add_ssm_group_count(config.mamba_n_groups)


def _tell_lfm(writer: Any, config: PreTrainedConfig) -> None:
    writer.add_feed_forward_length(_inner(config))
    kinds = config.layer_types
    writer.add_head_count_kv([config.num_key_value_heads * (kind == "full_attention") for kind in kinds])
    writer.add_shortconv_l_cache(config.conv_L_cache)


def _tell_states(writer: Any, taps: int, width: int, size: int, heads: int) -> None:
    writer.add_ssm_conv_kernel(taps)
    writer.add_ssm_inner_size(width)
    writer.add_ssm_state_size(size)
    writer.add_ssm_time_step_rank(heads)


def _inner(config: PreTrainedConfig) -> int:
    """The width of LFM2's MLPs, as its model works it out."""
    inner = int(config.block_ffn_dim_multiplier * int(2 * config.intermediate_size / 3))
    multiple: int = config.block_multiple_of
    return multiple * -(-inner // multiple)


def _of_qwen(config: PreTrainedConfig, layer: int) -> Tensors:
    width, dim = config.hidden_size, config.head_dim
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    heads = config.linear_num_value_heads
    values = heads * config.linear_value_head_dim
    found = {**mlp(width, config.intermediate_size), **norms(width, "attn_norm", "post_attention_norm")}
    if config.layer_types[layer] == "full_attention":
        attention = _attention(width, config.num_attention_heads * dim, config.num_key_value_heads * dim)
        attention["attn_q.weight"] = (2 * config.num_attention_heads * dim, width)
        return {**found, **attention, **norms(dim, "attn_q_norm", "attn_k_norm")}
    return {
        **found,
        "attn_qkv.weight": (2 * keys + values, width),
        "attn_gate.weight": (values, width),
        "ssm_conv1d.weight": (2 * keys + values, 4),
        "ssm_dt.bias": (heads,),
        "ssm_a": (heads,),
        "ssm_beta.weight": (heads, width),
        "ssm_alpha.weight": (heads, width),
        "ssm_norm.weight": (config.linear_value_head_dim,),
        "ssm_out.weight": (width, values),
    }


def _of_falcon(config: PreTrainedConfig, layer: int) -> Tensors:
    width, inner, heads = config.hidden_size, config.mamba_d_ssm, config.mamba_n_heads
    mixed = inner + 2 * config.mamba_n_groups * config.mamba_d_state
    dim = config.head_dim
    return {
        **mlp(width, config.intermediate_size),
        **norms(width, "attn_norm"),
        "ffn_norm": (width,),
        **_attention(width, config.num_attention_heads * dim, config.num_key_value_heads * dim),
        "ssm_in.weight": (inner + mixed + heads, width),
        "ssm_conv1d.weight": (mixed, config.mamba_d_conv),
        "ssm_conv1d.bias": (mixed,),
        "ssm_dt.bias": (heads,),
        "ssm_a": (heads, 1),
        "ssm_d": (heads, 1),
        "ssm_out.weight": (width, inner),
    }


def _of_lfm(config: PreTrainedConfig, layer: int) -> Tensors:
    width, dim = config.hidden_size, _head_dim(config)
    found = {**mlp(width, _inner(config)), **norms(width, "attn_norm", "ffn_norm")}
    if config.layer_types[layer] == "full_attention":
        return {
            **found,
            **_attention(width, width, config.num_key_value_heads * dim),
            **norms(dim, "attn_q_norm", "attn_k_norm"),
        }
    return {
        **found,
        "shortconv.conv.weight": (width, config.conv_L_cache),
        "shortconv.in_proj.weight": (3 * width, width),
        "shortconv.out_proj.weight": (width, width),
    }


def _attention(width: int, queries: int, keys: int) -> Tensors:
    rows = {"attn_q": queries, "attn_k": keys, "attn_v": keys}
    return {**{f"{name}.weight": (each, width) for name, each in rows.items()}, "attn_output.weight": (width, queries)}


_FAMILIES: dict[str, tuple[str, Callable[[Any, Any], None], Callable[[Any, int], Tensors]]] = {
    "qwen3_5_text": ("qwen35", _tell_qwen, _of_qwen),
    "falcon_h1": ("falcon-h1", _tell_falcon, _of_falcon),
    "lfm2": ("lfm2", _tell_lfm, _of_lfm),
}
"""The architecture's name in GGUF, and functions that tell its own numbers and its layers' tensors."""
