"""Models of random weights, whose time and bytes are those of trained ones of their shape."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedConfig, PreTrainedModel

from winnow.models import quantize_weights
from winnow.models.loading import use_own_layers

CONTEXT = 1 << 20
"""Tokens that Llamas read: more than any prompt here has."""
DTYPE = "bfloat16"
"""Weights that are not rounded, in this type."""


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


def random_model(config: PreTrainedConfig, weights: str, *, embedding: float | None = None) -> PreTrainedModel:
    """The same weights whenever it is called, in bfloat16 or of fewer bits ("int8", "int4"), with Winnow's layers.

    embedding: standard deviation of its numbers, where it is not to be the configuration's.
    """
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        config, dtype=torch.bfloat16, attn_implementation="winnow"
    )
    model.eval().requires_grad_(False)
    if embedding is not None:
        torch.nn.init.normal_(model.get_input_embeddings().weight, std=embedding)
    if weights != DTYPE:
        quantize_weights(model, weights)
    use_own_layers(model)
    return model
