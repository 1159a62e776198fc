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
    One pass over blocks of queries: memory is linear in N, arithmetic fp32, sums float64. What a model's sinks take is
    attention paid to no token: no share of it can be kept, but it stays in the denominator of the outputs. A query that
    sees no kept slot gets the output zero.
    """
    heads, group = view.keys.shape[0], view.queries.shape[0] // view.keys.shape[0]
    values = view.values.float()
    held = values if packed is None else packed.values.float()
    paid = torch.zeros(heads, group, dtype=torch.float64, device=values.device)
    found, lost, whole = torch.zeros_like(paid), paid.new_zeros(()), paid.new_zeros(())
    again = None if packed is None else attention_blocks(packed, queries)
    for block in attention_blocks(view, queries):
        attention, visible = block.attention, block.attention.shape[-1]
        total = attention.sum(dim=-1, keepdim=True)
        sinks = torch.zeros_like(total) if view.sinks is None else (1 - total).clamp(min=0)
        full = _outputs(attention, total + sinks, values[:, :visible])
        remaining = attention.mul_(kept[:, None, None, :visible]).sum(dim=-1, keepdim=True)
        paid += total.double().sum(dim=(2, 3))
        found += remaining.double().sum(dim=(2, 3))
        if again is not None:
            attention = next(again).attention
            # What sinks take is measured against the packed logits, not against those of the view.
            if view.sinks is not None:
                sinks = (1 - attention.sum(dim=-1, keepdim=True)).clamp(min=0)
            remaining = attention.mul_(kept[:, None, None, :visible]).sum(dim=-1, keepdim=True)
        reduced = _outputs(attention, remaining + sinks, held[:, :visible])
        lost += (reduced - full).double().square().sum()
        whole += full.double().square().sum()
    share = torch.where(paid > 0, found / paid, 1.0)  # without attention to any token none is lost
    return KeptAttention(share.mean(dim=1).cpu(), float((lost / whole).sqrt()) if whole else 0.0)


def _outputs(attention: Tensor, denominator: Tensor, values: Tensor) -> Tensor:
    """Attention [H, G, r, M] over its denominator [H, G, r, 1], times values [H, M, Dv]: [H, G, r, Dv]."""
    weighted = (attention.flatten(1, 2) @ values).view(*attention.shape[:3], -1)
    return weighted / denominator.clamp(min=torch.finfo(denominator.dtype).tiny)
