"""Identify Critical KV Cache in LLM Inference from an Output Perturbation Perspective (CriticalKV).

Feng et al. 2025, arXiv 2502.03805.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from winnow.errors import MethodError
from winnow.parameters import check_number, meaning
from winnow.score.base import Ranking, Refiner, Scorer
from winnow.select import best_tokens
from winnow.view import Extra, LayerView

_BLOCK = 1 << 23
"""Projected numbers to hold at once (32 MiB in fp32)."""


@dataclass(frozen=True)
class Critical(Refiner):
    """A second stage that also asks how much a token's value can change the output of the layer.

    A `share` of a head's slots, rounded down, goes to the best tokens by the base scores s (what is always kept counts
    as best), the rest to the best of the others by

        (s[t] + 1e-4)·‖W_o v_t‖₁    mean over the query heads of the group

    s is the base's final order, so that what its own second stage keeps (H2O's recent tokens) stays. Where a base has
    negative scores (knorm, keydiff), those of every head are raised until the lowest is 0: a product would put
    negative ones in reverse order.
    """

    base: Scorer = field(kw_only=True)
    share: float = field(default=0.5, metadata=meaning("share of a head's slots that the base scores alone fill"))
    smoothing: float = field(default=1e-4, metadata=meaning("added to the base scores before the multiplication"))

    def __post_init__(self) -> None:
        check_number(self, "share", 0, 1)
        check_number(self, "smoothing", 0)

    @property
    def extras(self) -> Extra:
        return self.base.extras | Extra.OUTPUT_PROJECTION

    def refine(self, ranking: Ranking, slots: Tensor, view: LayerView) -> Tensor:
        """The final order [H, N]. Raises MethodError for a view without its output projection."""
        scores = self.base.refine(ranking, slots, view)
        first = (slots.double() * self.share).floor().long()
        certain = best_tokens(scores, first) | (scores == torch.inf)
        # -inf marks what cannot be kept, and is no score to raise others by
        lowest = scores.masked_fill(scores == -torch.inf, 0).amin(dim=1, keepdim=True).clamp(max=0)
        return ((scores - lowest + self.smoothing) * projected_norms(view)).masked_fill(certain, torch.inf)


def projected_norms(view: LayerView) -> Tensor:
    """‖W_o v_t‖₁ [H, N] in fp32, the mean over the query heads of the group.

    Raises:
        MethodError: the view lacks its output projection.
    """
    if view.output_projection is None:
        raise MethodError(
            f"Critical needs the output projection of layer {view.layer}: give LayerView.output_projection, as caches "
            "do."
        )
    heads, length, dim = view.values.shape
    queries, _, width = view.output_projection.shape
    group = queries // heads
    # [H, Dv, G·E]: one product per KV head serves its group, and the sum over G·E is the sum of the group's norms
    matrix = view.values.new_empty((heads, dim, group, width), dtype=torch.float32)
    matrix.copy_(view.output_projection.view(heads, group, dim, width).transpose(1, 2))
    matrix = matrix.flatten(2)
    norms = matrix.new_empty((heads, length))
    step = min(length, max(1, _BLOCK // (queries * width)))
    projected = matrix.new_empty((heads, step, group * width))  # once: pages fresh from the system cost more than sums
    for values, part in zip(view.values.split(step, dim=1), norms.split(step, dim=1), strict=True):
        product = torch.bmm(values.float(), matrix, out=projected[:, : values.shape[1]])
        part.copy_(product.abs_().sum(dim=-1))
    return norms.div_(group)
