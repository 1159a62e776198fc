"""GGUF files of random blocks in the shapes of models with linear states: matrices in Q4_0, the embedding in Q8_0."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedConfig

Tensors = dict[str, tuple[int, ...]]
"""Shapes by name. Those of two dimensions are matrices in blocks, but for the ends of names in `_IN_FP32`."""
_BLOCK, _IN_FP32 = 32, ("ssm_conv1d.weight", "shortconv.conv.weight", "ssm_a", "ssm_d")
_CONTEXT = 32768


def write_hybrid_gguf(path: Path, config: PreTrainedConfig) -> None:
    """Writes the file of a configuration's shape. Raises KeyError for another family."""
    import gguf

    architecture, tell, _ = _FAMILIES[config.model_type]
    writer = gguf.GGUFWriter(path, architecture)
    _tell_shape(writer, config)
    tell(writer, config)
    _tell_tokens(writer, config.vocab_size)
    chance = np.random.default_rng(0)
    for name, shape in tensors_of(config).items():
        _add(writer, name, shape, chance)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors_of(config: PreTrainedConfig) -> Tensors:
    """All tensors of a model. Raises KeyError for another family."""
    architecture, _, of_layer = _FAMILIES[config.model_type]
    norm = "token_embd_norm" if architecture == "lfm2" else "output_norm"
    found = {"token_embd.weight": (config.vocab_size, config.hidden_size), f"{norm}.weight": (config.hidden_size,)}
    for layer in range(config.num_hidden_layers):
        found |= {f"blk.{layer}.{name}": shape for name, shape in of_layer(config, layer).items()}
    return found


def _add(writer: Any, name: str, shape: tuple[int, ...], chance: np.random.Generator) -> None:
    import gguf

    if len(shape) < 2 or name.endswith(_IN_FP32):
        writer.add_tensor(name, (0.02 * chance.standard_normal(shape)).astype(np.float32))
        return
    kind = gguf.GGMLQuantizationType.Q8_0 if name == "token_embd.weight" else gguf.GGMLQuantizationType.Q4_0
    numbers, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = chance.integers(0, 256, (prod(shape) // numbers, size), np.uint8)
    blocks[:, :2] = np.array([2e-4 if size > _BLOCK else 4e-3], np.float16).view(np.uint8)
    writer.add_tensor(name, blocks.reshape(*shape[:-1], -1), raw_dtype=kind)


def _tell_shape(writer: Any, config: PreTrainedConfig) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_key_length(_head_dim(config))
    writer.add_value_length(_head_dim(config))
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_vocab_size(config.vocab_size)


def _head_dim(config: PreTrainedConfig) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _tell_tokens(writer: Any, count: int) -> None:
    letters = sorted(ByteLevel.alphabet())
    tokens = [*letters, "he", *(f"<{number}>" for number in range(count - len(letters) - 2)), "<|endoftext|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(tokens) - 1) + [3])
    writer.add_token_merges(["h e"])
    writer.add_eos_token_id(len(tokens) - 1)


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
    found = {**_mlp(width, config.intermediate_size), **_norms(width, "attn_norm", "post_attention_norm")}
    if config.layer_types[layer] == "full_attention":
        attention = _attention(width, config.num_attention_heads * dim, config.num_key_value_heads * dim)
        attention["attn_q.weight"] = (2 * config.num_attention_heads * dim, width)
        return {**found, **attention, **_norms(dim, "attn_q_norm", "attn_k_norm")}
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
        **_mlp(width, config.intermediate_size),
        **_norms(width, "attn_norm"),
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
    found = {**_mlp(width, _inner(config)), **_norms(width, "attn_norm", "ffn_norm")}
    if config.layer_types[layer] == "full_attention":
        return {
            **found,
            **_attention(width, width, config.num_key_value_heads * dim),
            **_norms(dim, "attn_q_norm", "attn_k_norm"),
        }
    return {
        **found,
        "shortconv.conv.weight": (width, config.conv_L_cache),
        "shortconv.in_proj.weight": (3 * width, width),
        "shortconv.out_proj.weight": (width, width),
    }


def _mlp(width: int, inner: int) -> Tensors:
    return {"ffn_gate.weight": (inner, width), "ffn_up.weight": (inner, width), "ffn_down.weight": (width, inner)}


def _attention(width: int, queries: int, keys: int) -> Tensors:
    rows = {"attn_q": queries, "attn_k": keys, "attn_v": keys}
    return {**{f"{name}.weight": (each, width) for name, each in rows.items()}, "attn_output.weight": (width, queries)}


def _norms(width: int, *names: str) -> Tensors:
    return {f"{name}.weight": (width,) for name in names}


_FAMILIES: dict[str, tuple[str, Callable[[Any, Any], None], Callable[[Any, int], Tensors]]] = {
    "qwen3_5_text": ("qwen35", _tell_qwen, _of_qwen),
    "falcon_h1": ("falcon-h1", _tell_falcon, _of_falcon),
    "lfm2": ("lfm2", _tell_lfm, _of_lfm),
}
"""The architecture's name in GGUF, and functions that tell its own numbers and its layers' tensors."""
