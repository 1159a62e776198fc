"""Attention that shows the weights of single tokens to whoever asks for them.

An attention function of its own name, registered with transformers like Winnow's: prompts and outputs are computed by
the stock attention, exactly as without it. For a step of a single token, the weights [Hq, n] of every full-attention
layer are computed beside it and handed on at once, so that no more than one layer's are alive and no n x n matrix is
ever formed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from winnow.cache.attention import winnow_attention, winnow_mask
from winnow.cache.hybrid import is_full_attention, stock_layers
from winnow.kernels.interface import AttentionSpec

IMPLEMENTATION = "winnow_needle"

See = Callable[[int, Tensor], None]
"""Takes a layer's place among the full-attention layers, and weights [Hq, n]."""


class Watched(NamedTuple):
    """The layers that show their weights, and the function that they show them to."""

    places: dict[int, int]
    """Decoder layer -> place among the full-attention layers, in order."""
    see: See


_AT_ONCE = 8192
"""Positions whose keys are in float32 together."""

_WATCHED: ContextVar[Watched | None] = ContextVar("winnow_needle", default=None)


def full_layers(model: PreTrainedModel) -> dict[int, int]:
    """Decoder layers that Winnow compresses -> their place among them.

    Layers that read another layer's keys (Gemma 3n) store none and are not among them.
    """
    stock = stock_layers(model.config.get_text_config(decoder=True))
    full = [index for index, layer in enumerate(stock) if is_full_attention(layer)]
    return {index: place for place, index in enumerate(full)}


@contextmanager
def showing(model: PreTrainedModel, see: See) -> Iterator[None]:
    """Inside, every step of a single token calls `see` once for each full-attention layer.

    The model's attention function is the one it had before when this ends.
    """
    before = model.config._attn_implementation
    model.set_attn_implementation(IMPLEMENTATION)
    token = _WATCHED.set(Watched(full_layers(model), see))
    try:
        yield
    finally:
        _WATCHED.reset(token)
        model.set_attn_implementation(before)


def showing_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Ordinary attention of query [1, Hq, Q, D] over key and value [1, H, n, D]; shows the weights where Q is 1."""
    watched = _WATCHED.get()
    place = None if watched is None else watched.places.get(getattr(module, "layer_idx", -1))
    if watched is not None and place is not None and query.shape[2] == 1:
        spec = AttentionSpec(query.shape[-1] ** -0.5 if scaling is None else scaling, softcap, s_aux)
        watched.see(place, step_weights(query[0, :, 0], key[0], attention_mask, spec))
    return winnow_attention(
        module, query, key, value, attention_mask, scaling=scaling, softcap=softcap, s_aux=s_aux, **kwargs
    )


def step_weights(query: Tensor, key: Tensor, mask: Tensor | None, spec: AttentionSpec) -> Tensor:
    """Weights [Hq, n] of one token's query [Hq, D] over key [H, n, D]; products and softmax in float32 at least.

    mask: boolean or additive [1, 1, 1, n], or None. Soft-capping and sinks are the model's; a sink takes its share of
    the weights and is no position.
    """
    logits = _products(query, key) * spec.scaling
    if spec.softcap is not None:
        logits = spec.softcap * torch.tanh(logits / spec.softcap)
    if mask is not None:
        row = mask[0, :, -1]
        logits = logits.masked_fill(~row, float("-inf")) if row.dtype == torch.bool else logits + row
    if spec.sinks is None:
        return logits.softmax(dim=-1)
    sinks = spec.sinks.to(logits).reshape(-1, 1)
    return torch.cat([logits, sinks], dim=-1).softmax(dim=-1)[:, :-1]


def _products(query: Tensor, key: Tensor) -> Tensor:
    """[Hq, n] in float32 at least. A product in 16 bits would be rounded, and other positions would be the highest."""
    wide = torch.promote_types(query.dtype, torch.float32)
    grouped = query.to(wide).unflatten(0, (key.shape[0], -1))
    # A part of the keys at a time, because all of them in float32 are twice what the model holds.
    parts = [grouped @ part.to(wide).mT for part in key.split(_AT_ONCE, dim=1)]
    return torch.cat(parts, dim=-1).flatten(0, 1)


AttentionInterface.register(IMPLEMENTATION, showing_attention)
AttentionMaskInterface.register(IMPLEMENTATION, winnow_mask)
