"""A forward pass of single tokens, or of some on trial, over a compressed prompt, told from others by its arguments."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from winnow.cache.compressed import CompressedCache
from winnow.cache.guards import text_config
from winnow.kernels.without_autocast import autocast_is_on
from winnow.models.cache_argument import CACHE_NAMES, given_cache

_LOOKED_AT = frozenset(
    ("input_ids", "attention_mask", "position_ids", *CACHE_NAMES, "use_cache", "logits_to_keep", "return_dict")
)
"""Arguments of a forward pass that are looked at, or that ask for nothing else."""


class StepTokens(NamedTuple):
    """A forward pass of one token of every row over a compressed prompt, or of several that are on trial."""

    cache: CompressedCache
    tokens: Tensor
    """[R, n]"""
    positions: Tensor
    """[R, n]"""
    first: bool
    """True if nothing came after the prompt yet."""

    @property
    def on_trial(self) -> bool:
        """True if some may be taken back."""
        return self.tokens.shape[1] > 1

    @classmethod
    def of(cls, model: PreTrainedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StepTokens | None:
        """The tokens that a forward pass takes; None for any other pass."""
        given = dict(zip(("input_ids",), args, strict=False)) | kwargs
        cache, tokens, mask = given_cache(given), given.get("input_ids"), given.get("attention_mask")
        if len(args) > 1 or not isinstance(cache, CompressedCache) or not isinstance(tokens, Tensor):
            return None
        if tokens.dim() != 2 or (tokens.shape[1] != 1 and not cache.compression.on_trial) or not _is_usual(given):
            return None
        layers = cache.compressed_layers()
        if not layers or not layers[0].compressed or not cache.compression.owns(model):
            return None
        # Which earlier tokens are padding the cache knows; a new one always counts.
        if mask is not None and (not isinstance(mask, Tensor) or mask.dim() != 2):
            return None
        if torch.is_grad_enabled() or autocast_is_on(tokens.device) or model.training:
            return None
        positions = _positions(model, cache, tokens, given.get("position_ids"), masked=mask is not None)
        return None if positions is None else cls(cache, tokens, positions, layers[0].is_fresh())


def _positions(
    model: PreTrainedModel, cache: CompressedCache, tokens: Tensor, given: Any, masked: bool
) -> Tensor | None:
    """Positions [R, n] of tokens [R, n], given or as any model counts them; None where this one may count otherwise.

    Some count by the mask, and those that see images by what these take.
    """
    if isinstance(given, Tensor):
        one_each = given.dim() == 2 and given.shape[1] == tokens.shape[1]
        return given.expand(tokens.shape) if one_each else None
    if given is not None or masked or text_config(model) is not model.config:
        return None
    first, count = cache.get_seq_length(), tokens.shape[1]
    return torch.arange(first, first + count, device=tokens.device).expand(tokens.shape)


def _is_usual(given: dict[str, Any]) -> bool:
    """True for arguments that ask for logits and nothing else."""
    others = all(value is None or value is False for name, value in given.items() if name not in _LOOKED_AT)
    return others and given.get("use_cache") is not False and given.get("return_dict") is not False
