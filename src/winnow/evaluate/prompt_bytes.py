"""Bytes of prompts that wait in a cache until they are compressed, with what the other layers of the model hold."""

from __future__ import annotations

from typing import NamedTuple

from transformers import PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionLayer

from winnow.cache.hybrid import heads_of, probed_layers, stock_layers, token_bytes
from winnow.cache.latent import query_dim
from winnow.cache.layer_config import most_query_heads
from winnow.cache.stats import storage_bytes


class PromptBytes(NamedTuple):
    """Bytes of a model's cache before compression, by what they belong to."""

    token: int
    """Keys and values of a token, in all layers that Winnow compresses."""
    query: int
    """Queries of a token, in the same layers."""
    windows: tuple[tuple[int, int], ...] = ()
    """Tokens that a sliding layer holds at most, and the bytes of one of them; for each sliding layer."""
    states: int = 0
    """States of linear layers, whatever the number of tokens."""

    def beside(self, tokens: int) -> int:
        """Windows and states after so many tokens: no two caches share them, whatever a method keeps."""
        return self.states + sum(min(tokens, most) * each for most, each in self.windows)

    def dense(self, tokens: int, queries: int) -> int:
        """A prompt of so many tokens, whose last `queries` queries wait with it."""
        return tokens * self.token + min(queries, tokens) * self.query + self.beside(tokens)


def prompt_bytes(model: PreTrainedModel) -> PromptBytes:
    """Sizes of a model's cache. A model with windows or states reads one token, which tells theirs."""
    config = model.config.get_text_config(decoder=True)
    queries = len(heads_of(model, config)) * most_query_heads(config) * query_dim(config)
    sizes = PromptBytes(token_bytes(model), queries * model.dtype.itemsize)
    if all(type(layer) is DynamicLayer for layer in stock_layers(config)):
        return sizes
    layers = probed_layers(model)
    sliding = [layer for layer in layers if isinstance(layer, DynamicSlidingWindowLayer)]
    linear = [layer for layer in layers if isinstance(layer, LinearAttentionLayer)]
    states = [
        state for layer in linear for kind in (layer.conv_states, layer.recurrent_states) for state in kind.values()
    ]
    return sizes._replace(
        # The token that comes next is the last of a window.
        windows=tuple((layer.sliding_window - 1, storage_bytes([layer.keys, layer.values])) for layer in sliding),
        states=storage_bytes(states),
    )
