"""Layers and KV heads that a table of a model's scores has a place for."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from winnow.cache.hybrid import heads_of
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


def token_bytes(model: PreTrainedModel) -> int:
    """Bytes that a token takes in a full cache of the layers that Winnow compresses, keys and values."""
    config = model.config.get_text_config(decoder=True)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * sum(heads_of(model, config)) * int(width) * model.dtype.itemsize


def table_shape(model: PreTrainedModel) -> TableShape:
    """The shape of a table per KV head. Raises HeadScoresError where layers differ: a table has one number of heads."""
    heads = heads_of(model, model.config.get_text_config(decoder=True))
    if len(set(heads)) != 1:
        raise HeadScoresError(
            f"The full-attention layers of this model have {sorted(set(heads))} KV heads; a table of scores needs one "
            "number."
        )
    return TableShape(len(heads), heads[0])
