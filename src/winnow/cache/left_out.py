"""Tokens that a model reads without its cache, where it is to take them up."""

from __future__ import annotations

from transformers import PreTrainedModel

from winnow.errors import CacheError


def check_takes_up(model: PreTrainedModel, length: int) -> None:
    """Raises CacheError where a model is about to read the beginning of a prompt, and gives its layers no cache."""
    if model.training and any(
        each.training and getattr(each, "gradient_checkpointing", False) for each in model.get_decoder().modules()
    ):
        check_taken_up(0, length)


def check_taken_up(seen: int, length: int) -> None:
    """Raises CacheError where a cache has seen fewer tokens than its model read."""
    if seen < length:
        raise CacheError(
            f"the model leaves {length - seen} of {length} tokens out of the cache, as gradient checkpointing does in "
            "training: call model.eval(), or model.gradient_checkpointing_disable()."
        )
