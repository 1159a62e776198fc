"""Who plays: the KV heads of a model's compressed layers, layer after layer."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel

from winnow.cache.hybrid import heads_of
from winnow.estimate.errors import ShapleyError


@dataclass(frozen=True)
class Players:
    """L·H players; player l·H + h is KV head h of compressed layer l."""

    layers: int
    heads: int

    @property
    def count(self) -> int:
        """How many there are."""
        return self.layers * self.heads


def players_of(model: PreTrainedModel) -> Players:
    """The players of a model. Raises ShapleyError for fewer than two, or layers with different numbers of heads."""
    heads = heads_of(model, model.config.get_text_config(decoder=True))
    if len(set(heads)) != 1:
        raise ShapleyError(
            f"The full-attention layers of this model have {sorted(set(heads))} KV heads; a table needs one number."
        )
    players = Players(len(heads), heads[0])
    if players.count < 2:
        raise ShapleyError("A single head has no one to play with.")
    return players
