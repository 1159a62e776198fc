"""Memory of a full cache, from a model's sizes."""

from __future__ import annotations

from transformers import PreTrainedModel

from winnow.cache.guards import text_config


def full_cache_bytes(model: PreTrainedModel, tokens: int) -> int:
    """Bytes of keys and values of so many tokens, if every layer attends to all of them."""
    config = text_config(model)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    size: int = 2 * config.num_hidden_layers * heads * dim * model.dtype.itemsize * tokens
    return size
