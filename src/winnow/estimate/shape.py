"""Layers and KV heads that a table of a model's scores has a place for."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from winnow.cache.hybrid import heads_of
from winnow.cache.latent import is_latent
from winnow.errors import HeadScoresError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class TableShape(NamedTuple):
    """L compressed layers of H KV heads each."""

    layers: int
    heads: int

    @property
    def total(self) -> int:
        """L·H, all KV heads. They are players of CoKV's game: player l·H + h is head h of layer l."""
        return self.layers * self.heads


def table_shape(model: PreTrainedModel) -> TableShape:
    """The shape of a table per KV head.

    Raises HeadScoresError where layers differ, as a table has one number of heads, and where heads share latents.
    """
    config = model.config.get_text_config(decoder=True)
    if is_latent(config):
        raise HeadScoresError(
            "The heads of this model share one latent per token, so none of them can have slots of its own, and scores "
            "of heads would decide nothing. Use a method without head scores (snapkv, adakv, aperturekv)."
        )
    heads = heads_of(model, config)
    if len(set(heads)) != 1:
        raise HeadScoresError(
            f"The full-attention layers of this model have {sorted(set(heads))} KV heads; a table of scores needs one "
            "number."
        )
    return TableShape(len(heads), heads[0])
