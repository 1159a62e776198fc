"""GGUF files of random weights: matrices in blocks of Q4_0, the embedding in Q8_0, all else in fp32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedConfig

Tensors = dict[str, tuple[int, ...]]
"""Shapes by name."""
CONTEXT = 32768
"""Tokens that models say they read."""
EMBEDDING, _WEIGHT = 1.0, 0.02
"""Standard deviations. With smaller embeddings tokens would soon be alike, and most would choose the same experts."""


def write_random(
    path: Path,
    architecture: str,
    tell: Callable[[Any], None],
    tensors: Tensors,
    *,
    in_fp32: tuple[str, ...],
    constant: Mapping[str, float] | None = None,
) -> None:
    """Writes a file.

    tell: tells a writer all but the tensors; in_fp32: ends of names of tensors that are no blocks though they have two
    dimensions; constant: values of tensors that are not random, by ends of names.
    """
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    tell(writer)
    chance = np.random.default_rng(0)
    for name, shape in tensors.items():
        value = next((each for end, each in (constant or {}).items() if name.endswith(end)), None)
        if value is not None:
            writer.add_tensor(name, np.full(shape, value, np.float32))
        elif len(shape) < 2 or name.endswith(in_fp32):
            writer.add_tensor(name, (_WEIGHT * chance.standard_normal(shape)).astype(np.float32))
        else:
            _add_blocks(writer, name, shape, chance)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_blocks(writer: Any, name: str, shape: tuple[int, ...], chance: np.random.Generator) -> None:
    """Adds a tensor in blocks.

    Half of the scales are negative: levels go from -8 to 7, and with a mean the values of all tokens would grow alike.
    """
    import gguf

    kinds = gguf.GGMLQuantizationType
    kind, spread, levels = (kinds.Q8_0, EMBEDDING, 256) if name == "token_embd.weight" else (kinds.Q4_0, _WEIGHT, 16)
    numbers, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = chance.integers(0, 256, (prod(shape) // numbers, size), np.uint8)
    scales = chance.choice([-1, 1], (len(blocks), 1)) * (spread * sqrt(12) / levels)
    blocks[:, :2] = scales.astype(np.float16).view(np.uint8)
    writer.add_tensor(name, blocks.reshape(*shape[:-1], -1), raw_dtype=kind)


def tell_shape(writer: Any, config: PreTrainedConfig) -> None:
    """Tells what models of all architectures have."""
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_vocab_size(config.vocab_size)


def tell_tokens(writer: Any, count: int) -> None:
    """Tells a tokenizer of so many tokens, most of them without a use."""
    letters = sorted(ByteLevel.alphabet())
    tokens = [*letters, "he", *(f"<{number}>" for number in range(count - len(letters) - 2)), "<|endoftext|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(tokens) - 1) + [3])
    writer.add_token_merges(["h e"])
    writer.add_eos_token_id(len(tokens) - 1)


def mlp(width: int, inner: int, kind: str = "") -> Tensors:
    """A gated MLP. kind: the end of its names ("_shexp")."""
    return {
        f"ffn_gate{kind}.weight": (inner, width),
        f"ffn_up{kind}.weight": (inner, width),
        f"ffn_down{kind}.weight": (width, inner),
    }


def norms(width: int, *names: str) -> Tensors:
    """Norms of a width."""
    return {f"{name}.weight": (width,) for name in names}
