"""Tokens that a model read without its cache, where it was to take them up."""

from __future__ import annotations

from winnow.errors import CacheError


def check_taken_up(seen: int, length: int) -> None:
    """Raises CacheError where a cache has seen fewer tokens than its model read."""
    if seen < length:
        raise CacheError(
            f"the model left {length - seen} of {length} tokens out of the cache, as gradient checkpointing does in "
            "training: call model.eval(), or model.gradient_checkpointing_disable()."
        )
