"""Slots of every head from what they are worth: convex losses, and the best of all their steps together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from winnow.heads.curves import GRID

Across = Literal["model", "layer"]
"""The heads that share slots."""


def convex_gains(gains: Tensor) -> Tensor:
    """[H, N] float64: gains that never rise with the rank, by pooling neighbors that do (pool adjacent violators).

    They are the steps of the largest convex loss below the loss of every head; +inf stay as they are.
    """
    return torch.stack([_pooled(head) for head in gains.double().cpu()])


def _pooled(gains: Tensor) -> Tensor:
    """Least-squares fit of one head that does not rise: neighbors that rise share their mean."""
    certain = int((gains == torch.inf).sum())
    means: list[float] = []
    sizes: list[int] = []
    for gain in gains[certain:].tolist():
        mean, size = gain, 1
        while means and means[-1] < mean:
            before, count = means.pop(), sizes.pop()
            mean, size = (before * count + mean * size) / (count + size), size + count
        means.append(mean)
        sizes.append(size)
    fitted = torch.tensor(means, dtype=torch.float64, device="cpu").repeat_interleave(
        torch.tensor(sizes, dtype=torch.int64, device="cpu")
    )
    return torch.cat([gains[:certain], fitted])


def least_loss(gains: Sequence[Tensor]) -> Tensor:
    """[99, L, H] int64: slots of every head of least total loss, where 1% … 99% of all slots go.

    gains: [H, N] of every layer, none rising with the rank. Taking the best steps of all heads is best because of that;
    equal ones go to the lower rank, layer and head. What is always kept is kept.
    """
    together = torch.stack(list(gains))  # [L, H, N]
    layers, heads, length = together.shape
    by_rank = together.permute(2, 0, 1).flatten()
    owners = by_rank.argsort(descending=True, stable=True) % (layers * heads)
    certain = int((by_rank == torch.inf).sum())
    total = layers * heads * length
    slots = []
    for gone in range(1, GRID + 1):
        kept = max(round(total * (100 - gone) / 100), certain)
        slots.append(torch.bincount(owners[:kept], minlength=layers * heads).view(layers, heads))
    return torch.stack(slots)


def profile(gains: Sequence[Tensor], across: Across = "model") -> Tensor:
    """[99, L, H] int64: slots of every head, from the gains [H, N] of one question's layers.

    across: heads of the whole model share its slots, or those of a layer the layer's, which is the same for all.
    """
    convex = [convex_gains(each) for each in gains]
    if across == "model":
        return least_loss(convex)
    return torch.cat([least_loss([each]) for each in convex], dim=1)
