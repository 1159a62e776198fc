"""Llamas of random weights, whose time and bytes are those of trained ones of their shape."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

CONTEXT = 1 << 20
"""Tokens that they read: more than any prompt here has."""


def random_llama(
    *,
    layers: int,
    query_heads: int,
    kv_heads: int,
    head_dim: int,
    hidden: int,
    vocabulary: int,
    intermediate: int | None = None,
    spread: float = 0.02,
) -> LlamaForCausalLM:
    """The same weights whenever it is called, in fp32.

    hidden: width; that of its feed-forward layers, too, where `intermediate` says nothing else. spread: standard
    deviation of the weights.
    """
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate or hidden,
        num_hidden_layers=layers,
        num_attention_heads=query_heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=CONTEXT,
        initializer_range=spread,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()
