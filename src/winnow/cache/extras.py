"""Checks that a model shows what a scorer asks for besides queries, keys and values."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from winnow.cache.decoder_modules import decoder_modules
from winnow.cache.hybrid import is_full_attention, stock_layers
from winnow.cache.projection import checked_projection
from winnow.cache.rotary import check_rotation
from winnow.view import Extra


def check_extras(model: PreTrainedModel, config: PreTrainedConfig, asked: Extra) -> None:
    """Raises ModelError where a full-attention layer's rotation or output projection is asked for and not found.

    Better now than at the end of a long prefill; modules of unusual names are still met then.
    """
    if not asked & (Extra.ROTATION | Extra.OUTPUT_PROJECTION):
        return
    for attention in _attention_modules(model, config):
        if Extra.ROTATION in asked:
            check_rotation(model, attention)
        if Extra.OUTPUT_PROJECTION in asked:
            checked_projection(attention)


def _attention_modules(model: PreTrainedModel, config: PreTrainedConfig) -> list[nn.Module]:
    """The attention modules of the full-attention layers, as far as their names tell."""
    full = {index for index, stock in enumerate(stock_layers(config)) if is_full_attention(stock)}
    return [
        module for layer, module in decoder_modules(model) if layer in full and "Attention" in type(module).__name__
    ]
