"""Configurations of models whose layers have facts of their own: heads of another size, more of them (Gemma 4)."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig


def of_layer(config: PreTrainedConfig, index: int) -> PreTrainedConfig:
    """The decoder's configuration as it is for one of its layers."""
    if not _is_mixed(config):
        return config
    found: PreTrainedConfig = config.per_layer_config[index]
    return found


def of_full_layers(config: PreTrainedConfig) -> PreTrainedConfig:
    """The decoder's configuration as it is for the first of its full-attention layers."""
    types = getattr(config, "layer_types", None) or ()
    return of_layer(config, types.index("full_attention") if "full_attention" in types else 0)


def most_query_heads(config: PreTrainedConfig) -> int:
    """Query heads of the decoder's full-attention layer that has most of them."""
    if not _is_mixed(config):
        heads: int = config.num_attention_heads
        return heads
    types = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    full = [index for index, kind in enumerate(types) if kind == "full_attention"]
    return max(of_layer(config, index).num_attention_heads for index in full or range(len(types)))


def fact_of(config: PreTrainedConfig, name: str) -> Any:
    """A fact of a configuration, None where it has none; those of all layers where each has its own."""
    try:
        return getattr(config, name, None)
    except RuntimeError:  # transformers' word on facts that are of layers
        return [getattr(of_layer(config, index), name, None) for index in range(config.num_hidden_layers)]


def _is_mixed(config: PreTrainedConfig) -> bool:
    return bool(getattr(config, "is_heterogeneous", False))
