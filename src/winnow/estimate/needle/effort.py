"""The time that prompts take, relative to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from winnow.cache.layer_config import of_full_layers
from winnow.estimate.needle.capture import full_layers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ANSWER = 500
"""An answer, whose tokens come one by one, takes about as long as the prefill of so many tokens."""


@dataclass(frozen=True)
class Effort:
    """The work of a run, in tokens of a short prefill: attention makes those of a long one dearer."""

    attention: float
    """A token's attention to one token before it, relative to all that is done to a token besides."""

    @classmethod
    def of(cls, model: PreTrainedModel) -> Effort:
        """By multiplications: every weight once per token, and two products per head dimension and earlier token."""
        config = of_full_layers(model.config.get_text_config(decoder=True))
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        weights = model.num_parameters(exclude_embeddings=True)
        return cls(2 * len(full_layers(model)) * config.num_attention_heads * width / max(1, weights))

    def __call__(self, tokens: int) -> float:
        """The work of a prompt of so many tokens, with its answer."""
        return tokens + self.attention * tokens**2 / 2 + ANSWER
