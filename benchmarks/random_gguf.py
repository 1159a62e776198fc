"""A GGUF file of random blocks in the shape of Qwen3-30B-A3B, as llama.cpp's Q4_K_M has them, with few layers."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

HIDDEN, INNER, EXPERTS, CHOSEN, HEADS, KV_HEADS, DIM = 2048, 768, 128, 8, 32, 4, 128
TOKENS = [*sorted(ByteLevel.alphabet()), "he", "<|endoftext|>"]
SCALES = {"Q4_K": (slice(0, 2), 8e-4, slice(2, 4), 5e-3), "Q6_K": (slice(208, 210), 2e-5, slice(208, 210), 2e-5)}
"""Bytes of a block that hold its scale, the value, and the same for the scale of its least values if it has them."""


def write_random_gguf(path: Path, layers: int) -> None:
    """Writes the file: matrices in 4 bits, but for values, and every second layer's last matrix of experts, in 6."""
    import gguf

    writer = gguf.GGUFWriter(path, "qwen3moe")
    _tell_shape(writer, layers)
    _tell_tokens(writer)
    chance = np.random.default_rng(0)
    for name, (shape, kind) in _tensors(layers).items():
        if kind == "F32":
            writer.add_tensor(name, (0.02 * chance.standard_normal(shape)).astype(np.float32))
        else:
            writer.add_tensor(name, _blocks(shape, kind, chance), raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tell_shape(writer: Any, layers: int) -> None:
    writer.add_block_count(layers)
    writer.add_context_length(4096)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(6144)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(DIM)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(TOKENS))
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(CHOSEN)
    writer.add_expert_feed_forward_length(INNER)


def _tell_tokens(writer: Any) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([1] * (len(TOKENS) - 1) + [3])
    writer.add_token_merges(["h e"])
    writer.add_eos_token_id(len(TOKENS) - 1)


def _tensors(layers: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes and kinds by name."""
    vocabulary = (len(TOKENS), HIDDEN)
    found: dict[str, tuple[tuple[int, ...], str]] = {
        "token_embd.weight": (vocabulary, "F32"),
        "output.weight": (vocabulary, "F32"),
        "output_norm.weight": ((HIDDEN,), "F32"),
    }
    for layer in range(layers):
        of_layer = {
            "attn_norm": ((HIDDEN,), "F32"),
            "ffn_norm": ((HIDDEN,), "F32"),
            "attn_q_norm": ((DIM,), "F32"),
            "attn_k_norm": ((DIM,), "F32"),
            "attn_q": ((HEADS * DIM, HIDDEN), "Q4_K"),
            "attn_k": ((KV_HEADS * DIM, HIDDEN), "Q4_K"),
            "attn_v": ((KV_HEADS * DIM, HIDDEN), "Q6_K"),
            "attn_output": ((HIDDEN, HEADS * DIM), "Q4_K"),
            "ffn_gate_inp": ((EXPERTS, HIDDEN), "F32"),
            "ffn_gate_exps": ((EXPERTS, INNER, HIDDEN), "Q4_K"),
            "ffn_up_exps": ((EXPERTS, INNER, HIDDEN), "Q4_K"),
            "ffn_down_exps": ((EXPERTS, HIDDEN, INNER), "Q4_K" if layer % 2 else "Q6_K"),
        }
        found |= {f"blk.{layer}.{name}.weight": each for name, each in of_layer.items()}
    return found


def _blocks(shape: tuple[int, ...], kind: str, chance: np.random.Generator) -> np.ndarray:
    """Bytes [..., B] with scales that keep values small."""
    import gguf

    numbers, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = chance.integers(0, 256, (prod(shape) // numbers, size), np.uint8)
    first, scale, second, least = SCALES[kind]
    for place, value in ((second, least), (first, scale)):
        blocks[:, place] = np.array([value], np.float16).view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)
