"""Identify Critical KV Cache in LLM Inference from an Output Perturbation Perspective (CriticalKV).

Feng et al. 2025, arXiv 2502.03805.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from winnow.errors import MethodError
from winnow.kernels.gpu import support
from winnow.kernels.onednn import has_onednn, linear_by_onednn
from winnow.parameters import SLACK, check_number, meaning
from winnow.score import on_gpu
from winnow.score.base import Ranking, Refiner, Scorer
from winnow.score.blocks import numbers_at_once
from winnow.select import best_tokens
from winnow.transfers import sent
from winnow.view import Extra, LayerView

_BLOCK = 1 << 23
"""Projected numbers to hold at once on a CPU (32 MiB in fp32)."""
_ROWS = 256
"""Tokens that oneDNN multiplies at once: what comes out of them fits into a cache."""
_ROUND = 64
"""Tokens of which those are multiples: oneDNN makes, and keeps, code for every number of them."""
_SPARE = 16
"""Tokens to look at besides those that are wanted."""
_ABOVE_ROUNDING = 1 + 1e-3
"""Keeps a bound of a number above that number, both in fp32."""
_LEAST_SQUARE = 1e-36
"""Numbers whose squares are less may be lost in fp32."""


@dataclass(frozen=True)
class Critical(Refiner):
    """Refines scores by how much a token's value can change the output of the layer.

    A `share` of a head's slots, rounded down, goes to the best tokens by the base scores s (tokens that are always kept
    count as best). The rest goes to the best of the others by

        (s[t] + 1e-4)·‖W_o v_t‖₁    mean over the query heads of the group

    s is the base's final order, so what its own second stage keeps (H2O's recent tokens) stays. If a base has negative
    scores (knorm, keydiff), the scores of every head are raised until the lowest is 0, because a product would reverse
    the order of negative ones.
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
        first = (slots.double() * self.share + SLACK).floor().long()
        certain = best_tokens(scores, first) | (scores == torch.inf)
        # -inf marks what cannot be kept, and is no score to raise others by
        lowest = scores.masked_fill(scores == -torch.inf, 0).amin(dim=1, keepdim=True).clamp(max=0)
        raised = (scores - lowest + self.smoothing).masked_fill(certain, -torch.inf)
        wanted = sent(slots, certain.device) - certain.sum(dim=1)
        return _worth(raised, wanted, view).masked_fill(certain, torch.inf)


def projected_norms(view: LayerView) -> Tensor:
    """‖W_o v_t‖₁ [H, N] in fp32, the mean over the query heads of the group.

    Raises:
        MethodError: the view lacks its output projection.
    """
    return _Projection.of(view).norms(view.values)


def _worth(raised: Tensor, wanted: Tensor, view: LayerView) -> Tensor:
    """s[t]·‖W_o v_t‖₁ [H, N] for s = raised [H, N], exact for the `wanted` [H] best tokens of every head.

    Other tokens may have anything less than those have: s times a bound of the norm, if that is less already.
    """
    projection, length, most = _Projection.of(view), view.values.shape[1], int(wanted.max())
    tried = most + most // 4 + _SPARE
    if view.latents is not None or 2 * tried > length:
        return raised * projection.norms(view.values)
    bounds = (raised * projection.bounds(view.values)).masked_fill(raised == -torch.inf, -torch.inf)
    likely, tokens = bounds.sort(dim=1, descending=True)
    exact = projection.products(raised, view.values, tokens[:, :tried])
    # The last one that is wanted is worth that much at least; what is bound to be worth less is out.
    least = exact.sort(dim=1, descending=True).values.gather(1, (wanted[:, None] - 1).clamp(min=0))
    possible = int((likely >= least).masked_fill(wanted[:, None] <= 0, False).sum(dim=1).max())
    if 2 * possible > length:
        return raised * projection.norms(view.values)
    rest = projection.products(raised, view.values, tokens[:, tried : max(possible, tried)])
    return bounds.scatter_(1, tokens[:, : max(possible, tried)], torch.cat([exact, rest], dim=1))


class _Projection(NamedTuple):
    """The output projection of a layer."""

    matrices: Tensor
    """[Hq, Dv, E] in fp32, the weight itself where it is fp32 or on a GPU that Triton drives: copying it would take as
    long as many tokens' products."""
    group: int
    """G, query heads of a KV head."""

    @classmethod
    def of(cls, view: LayerView) -> _Projection:
        if view.output_projection is None:
            raise MethodError(
                f"Critical needs the output projection of layer {view.layer}: give LayerView.output_projection, as "
                "caches do."
            )
        weight = view.output_projection
        return cls(weight if support.serves(view.values) else weight.float(), len(weight) // len(view.values))

    def norms(self, values: Tensor) -> Tensor:
        """‖W v‖₁ [H, n] of values [H, n, Dv], the mean over the group."""
        if support.serves(values):
            return on_gpu.output_sizes(values, self.matrices, squared=False).unflatten(0, (-1, self.group)).mean(dim=1)
        if values.device.type == "cpu" and values.shape[1] >= _ROWS and has_onednn():
            return self._norms_by_onednn(values)
        heads, _, width = self.matrices.shape
        norms = self.matrices.new_empty(values.shape[:2])
        step = max(1, min(values.shape[1], numbers_at_once(values.device, _BLOCK) // (heads * width)))
        projected = self.matrices.new_empty(heads, step, width)  # once: pages fresh from the system cost more than sums
        for part, out in zip(values.split(step, dim=1), norms.split(step, dim=1), strict=True):
            grouped = part.float().repeat_interleave(self.group, dim=0)
            product = torch.bmm(grouped, self.matrices, out=projected[:, : part.shape[1]])
            out.copy_(product.abs_().sum(dim=-1).unflatten(0, (-1, self.group)).mean(dim=1))
        return norms

    def _norms_by_onednn(self, values: Tensor) -> Tensor:
        """The same of many tokens; torch's products of batches take twice as long on processors of AMD."""
        sizes = self.matrices.new_empty(len(self.matrices), values.shape[1])
        for head, (matrix, out) in enumerate(zip(self.matrices, sizes, strict=True)):
            weight = matrix.t().contiguous()  # else oneDNN multiplies number by number
            for part, some in zip(values[head // self.group].split(_ROWS), out.split(_ROWS), strict=True):
                rounded = F.pad(part.float(), (0, 0, 0, -len(part) % _ROUND))
                some.copy_(linear_by_onednn(rounded, weight, None)[: len(part)].abs_().sum(dim=-1))
        return sizes.unflatten(0, (-1, self.group)).mean(dim=1)

    def bounds(self, values: Tensor) -> Tensor:
        """At least ‖W v‖₁ [H, n], the mean over the group: by ‖x‖₁² ≤ E·‖x‖₂² and ‖W v‖₂² = v·WWᵀ·v.

        That takes products with Dv numbers instead of E.
        """
        heads, dim, width = self.matrices.shape
        # The square of a mean is at most the mean of squares.
        matrices = self.matrices.float()
        gram = (matrices @ matrices.mT).unflatten(0, (-1, self.group)).mean(dim=1)
        lowest, highest = values.aminmax()
        size = torch.maximum(-lowest, highest).float().clamp(min=torch.finfo(torch.float32).tiny)
        bounds = matrices.new_empty(values.shape[:2])
        step = max(1, numbers_at_once(values.device, _BLOCK) // (heads * dim))
        for part, out in zip(values.split(step, dim=1), bounds.split(step, dim=1), strict=True):
            numbers = part.float() / size
            out.copy_((numbers @ gram).mul_(numbers).sum(dim=-1))
        return bounds.clamp_(min=_LEAST_SQUARE).mul_(width).sqrt_().mul_(size * _ABOVE_ROUNDING)

    def products(self, raised: Tensor, values: Tensor, tokens: Tensor) -> Tensor:
        """raised[t]·‖W v_t‖₁ [H, n] of some tokens [H, n] of every head."""
        chosen = values.gather(1, tokens[..., None].expand(-1, -1, values.shape[-1]))
        return raised.gather(1, tokens) * self.norms(chosen)
