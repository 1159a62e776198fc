"""A model that attends with winnow for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedConfig, PreTrainedModel

from winnow.cache.attention import IMPLEMENTATION
from winnow.cache.guards import text_config


@contextmanager
def attending(model: PreTrainedModel) -> Iterator[None]:
    """Sets the attention implementation "winnow" where the model has another, and puts that back afterwards."""
    if text_config(model)._attn_implementation == IMPLEMENTATION:
        yield
        return
    before = _implementations(model.config)
    model.set_attn_implementation(IMPLEMENTATION)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _implementations(config: PreTrainedConfig) -> dict[str, str]:
    """Attention implementations of a model and of the models inside it, by their names in its configuration."""
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    inside = {name: part._attn_implementation for name, part in parts.items() if part is not None}
    return {"": config._attn_implementation, **inside}
