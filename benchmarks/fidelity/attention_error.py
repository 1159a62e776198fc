"""Error of attention over a packed prompt against the prompt as it was, and the bytes of the packed one."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from layers import Layer
from winnow import Method
from winnow.select import everything
from winnow.view import LayerView

WINDOW = 8


class Error(NamedTuple):
    """Errors of one store, over all layers and prompts of a model."""

    share: float
    """Bytes over those of the dense slots, positions not counted."""
    error: float
    """Mean over layers, heads and queries of |o' - o| / |o|, o the attention output of a head."""


def measure(layers: Iterable[Layer], method: Method) -> Error:
    """Packs everything of every layer and attends to it; in the model's dtype, errors in fp32."""
    found = [_layer(layer, method) for layer in layers]
    return Error(fmean(each.share for each in found), fmean(each.error for each in found))


def _layer(layer: Layer, method: Method) -> Error:
    view = layer.view
    heads, length, _ = view.keys.shape
    block = method.store.pack(view, everything(view.keys), WINDOW)
    keys, values = block.recover(torch.arange(heads * length))
    right = _attention(layer.asking, view, view.keys.float(), view.values.float())
    packed = _attention(layer.asking, view, keys.view(heads, length, -1), values.view(heads, length, -1))
    off = ((packed - right).norm(dim=-1) / right.norm(dim=-1)).mean()
    return Error(sum(block.bytes().values()) / (view.keys.nbytes + view.values.nbytes), float(off))


def _attention(queries: Tensor, view: LayerView, keys: Tensor, values: Tensor) -> Tensor:
    """[H, G·n, Dv]"""
    folded = queries.float().reshape(keys.shape[0], -1, keys.shape[-1]) * view.scaling
    return (folded @ keys.transpose(1, 2)).softmax(-1) @ values
