"""Checks before a cache is made: what cannot work is refused with a word on what to do."""

from __future__ import annotations

from transformers import PreTrainedConfig, PreTrainedModel

from winnow.cache.attention import IMPLEMENTATION
from winnow.errors import CacheError, ModelError


def text_config(model: PreTrainedModel) -> PreTrainedConfig:
    """The decoder's configuration, also inside a vision-language model."""
    config: PreTrainedConfig = model.config.get_text_config(decoder=True)
    return config


def check_model(model: PreTrainedModel) -> None:
    """Raises ModelError or CacheError for a model whose cache cannot be compressed."""
    if getattr(model.config, "is_encoder_decoder", False):
        raise ModelError(
            f"{type(model).__name__} is an encoder-decoder model; winnow compresses the caches of decoder-only models."
        )
    config = text_config(model)
    if getattr(config, "kv_lora_rank", None):
        raise ModelError(
            f"{type(model).__name__} uses multi-head latent attention: its cache is one compressed latent per token, "
            "without KV heads to choose between. Use the model's own cache."
        )
    if not getattr(config, "is_causal", True):
        raise ModelError(f"{type(model).__name__} is configured as bidirectional; winnow needs a causal model.")
    check_implementation(config)


def check_implementation(config: PreTrainedConfig) -> None:
    """Raises CacheError unless the decoder uses winnow's attention function."""
    current = getattr(config, "_attn_implementation", None)
    if current != IMPLEMENTATION:
        raise CacheError(
            f"the model's attention implementation is {current!r}; call "
            f'model.set_attn_implementation("{IMPLEMENTATION}") before using a CompressedCache, and leave it so.'
        )
