"""Layers that are transformers' own, as a file filled them, against what the model itself makes of one token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import CacheLayerMixin, DynamicSlidingWindowLayer, LinearAttentionLayer

from winnow.cache.hybrid import probed_layers


class _Form(NamedTuple):
    """Properties of a layer's tensor that neither rows nor tokens change."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def check_stock_layers(model: PreTrainedModel, layers: Sequence[CacheLayerMixin]) -> None:
    """Raises ValueError where a sliding or linear layer holds tensors of another form than the model's own do.

    Runs one token through models that have such layers: their configurations do not tell what linear states look like.
    """
    filled = [index for index, layer in enumerate(layers) if _forms(layer)]
    if not filled:
        return
    probe = probed_layers(model)
    for index in filled:
        found, expected = _forms(layers[index]), _forms(probe[index])
        if found != expected:
            raise ValueError(f"layer {index} holds {found} where the model has {expected}")


def _forms(layer: CacheLayerMixin) -> dict[str, _Form]:
    """Forms of all tensors of a layer, by name; none for a layer of ours."""
    forms: dict[str, _Form] = {}
    if isinstance(layer, LinearAttentionLayer):
        for name, states in (("conv", layer.conv_states), ("recurrent", layer.recurrent_states)):
            forms |= {f"{name}.{index}": _form(state, 0) for index, state in states.items() if state is not None}
    elif isinstance(layer, DynamicSlidingWindowLayer) and layer.is_initialized:
        forms = {"keys": _form(layer.keys, 0, 2), "values": _form(layer.values, 0, 2)}
    return forms


def _form(tensor: Tensor, *free: int) -> _Form:
    """The form of a tensor whose axes `free` may have any size."""
    return _Form(tuple(size for axis, size in enumerate(tensor.shape) if axis not in free), tensor.dtype)
