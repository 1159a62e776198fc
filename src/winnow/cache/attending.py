"""A model that attends with winnow for a while."""

from __future__ import annotations

from contextlib import AbstractContextManager

from transformers import PreTrainedConfig, PreTrainedModel

from winnow.cache.attention import IMPLEMENTATION
from winnow.cache.guards import text_config
from winnow.cache.while_used import Undo, WhileUsed


def attending(model: PreTrainedModel) -> AbstractContextManager[None]:
    """Sets the attention implementation "winnow" where the model has another, and puts that back afterwards.

    Of several threads the last one to leave puts it back.
    """
    return _attending(model)


def _attend(model: PreTrainedModel) -> Undo | None:
    if text_config(model)._attn_implementation == IMPLEMENTATION:
        return None
    before = _implementations(model.config)
    model.set_attn_implementation(IMPLEMENTATION)
    return lambda: model.set_attn_implementation(before)


_attending = WhileUsed(_attend)


def _implementations(config: PreTrainedConfig) -> dict[str, str]:
    """Attention implementations of a model and of the models inside it, by their names in its configuration."""
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    inside = {name: part._attn_implementation for name, part in parts.items() if part is not None}
    return {"": config._attn_implementation, **inside}
