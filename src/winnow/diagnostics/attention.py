"""Measures on attention: what the last queries of a prompt lose when they see kept slots only."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from winnow.score.window import attention_blocks
from winnow.view import LayerView


class KeptAttention(NamedTuple):
    """The rest of a layer's attention."""

    mass: Tensor
    """[H] float64 on the CPU: the share of the attention that kept tokens receive, mean over the query group."""
    error: float
    """‖O' - O‖ / ‖O‖ over all queries and query heads; O without, O' with eviction and packing."""


def kept_attention(view: LayerView, kept: Tensor, queries: int, packed: LayerView | None = None) -> KeptAttention:
    """Attention of the last `queries` tokens, over all keys they see and over the `kept` ones [H, N] (bool) of them.

    packed: the view with keys and values that attention takes the packed ones for, where they differ from its own.
    A block of queries at a time: memory is linear in N, arithmetic fp32, sums float64. What a model's sinks take is
    attention paid to no token: no share of it can be kept, but it stays in the denominator of the outputs. A query that
    sees no kept slot gets the output zero.
    """
    heads, group = view.keys.shape[0], view.queries.shape[0] // view.keys.shape[0]
    values, reduced = view.values.float(), _without(view if packed is None else packed, ~kept)
    held = reduced.values.float()
    paid = torch.zeros(heads, group, dtype=torch.float64, device=values.device)
    found, lost, whole = torch.zeros_like(paid), paid.new_zeros(()), paid.new_zeros(())
    blocks = zip(attention_blocks(view, queries), attention_blocks(reduced, queries), strict=True)
    for (_, attention), (_, remaining) in blocks:
        full = _outputs(attention, values)
        lost += (_outputs(remaining, held) - full).double().square().sum()
        whole += full.double().square().sum()
        paid += attention.sum(dim=-1).double().sum(dim=2)
        found += attention.mul_(kept[:, None, None, : attention.shape[-1]]).sum(dim=-1).double().sum(dim=2)
    share = torch.where(paid > 0, found / paid, 1.0)  # without attention to any token none is lost
    return KeptAttention(share.mean(dim=1).cpu(), float((lost / whole).sqrt()) if whole else 0.0)


def _without(view: LayerView, gone: Tensor) -> LayerView:
    """The view as a cache without some tokens [H, N] has it: what the others receive is divided among them anew."""
    return view._replace(absent=gone if view.absent is None else view.absent | gone)


def _outputs(attention: Tensor, values: Tensor) -> Tensor:
    """Attention [H, G, r, M] times values [H, ≥ M, Dv]: [H, G, r, Dv]."""
    weighted = attention.flatten(1, 2) @ values[:, : attention.shape[-1]]
    return weighted.view(*attention.shape[:3], -1)
