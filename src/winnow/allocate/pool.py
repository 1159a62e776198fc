"""One pool of slots for all heads of all layers: the best scores of a prompt, wherever they are.

KVzip (Kim et al. 2025, arXiv 2505.23416) evicts so; here any scorer may.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from winnow.allocate.ada import winners_per_head
from winnow.allocate.base import Allocation, SlotPlan
from winnow.allocate.spanning import Claim, SpanningAllocator
from winnow.select import kth_largest
from winnow.view import WindowAttention


def pooled(scores: Sequence[Tensor], total: int) -> list[Tensor]:
    """Slots per head of every layer: how many of its scores are among the `total` best of all layers together.

    scores: [H, N] fp32 of every layer. Returns [H] int64 on the CPU for each. Scores of +inf are always among the best;
    equal scores go to the lower token, then the lower head, then the lower layer.
    """
    claims = [_best(each, total) for each in scores]
    counts = _counts(claims, [len(each) for each in scores], total)
    return [winners_per_head(each, count) for each, count in zip(scores, counts, strict=True)]


@dataclass(frozen=True)
class Global(SpanningAllocator):
    """Lets all heads of all layers compete for slots by their scores; a head may be left with what is always kept.

    Scores of different layers are compared as they are, so they must be comparable, as attention is.
    """

    def claim(self, scores: Tensor, attention: WindowAttention | None, plan: SlotPlan) -> Claim:
        return _best(scores, plan.slots)

    def totals(self, claims: Sequence[Claim], plan: SlotPlan) -> list[int]:
        return _counts(claims, plan.heads[: len(claims)], plan.slots)

    def head_slots(self, scores: Tensor, allocation: Allocation, layer: int) -> Tensor:
        return winners_per_head(scores, allocation.totals[layer])


def _best(scores: Tensor, total: int) -> Claim:
    """The `total` best of [H, N] scores, and all of +inf, in the order in which they are chosen."""
    certain = int((scores == torch.inf).sum())
    count = min(max(total, certain), scores.numel())
    by_token = scores.t().flatten()
    if count == 0:
        return Claim(scores=by_token[:0], places=torch.empty(0, dtype=torch.int64, device=scores.device))
    places = (by_token >= kth_largest(by_token, count)).nonzero().flatten()
    order = by_token[places].argsort(descending=True, stable=True)[:count]
    return Claim(scores=by_token[places[order]], places=places[order])


def _counts(claims: Sequence[Claim], heads: Sequence[int], total: int) -> list[int]:
    """Slots of every layer: its scores among the `total` best of all claims, all that is +inf included."""
    claims = _together(claims)
    scores = torch.cat([_scores(claim) for claim in claims])
    total = min(max(total, int((scores == torch.inf).sum())), len(scores))
    if total <= 0:
        return [0] * len(claims)
    threshold = kth_largest(scores, total)
    above = torch.stack([(_scores(claim) > threshold).sum() for claim in claims]).cpu()
    tied = torch.cat([_tied(claim, layer, heads, threshold) for layer, claim in enumerate(claims)])
    taken = tied.sort().values[: total - int(above.sum())] % len(claims)
    counts: list[int] = (above + torch.bincount(taken.cpu(), minlength=len(claims))).tolist()
    return counts


def _together(claims: Sequence[Claim]) -> list[Claim]:
    """Claims on the device of the last: layers of a model may lie on several."""
    device = _scores(claims[-1]).device
    return [Claim(scores=_scores(claim).to(device), places=_places(claim).to(device)) for claim in claims]


def _tied(claim: Claim, layer: int, heads: Sequence[int], threshold: Tensor) -> Tensor:
    """[n] int64: places of a layer's scores that are the threshold, in an order over all layers: token, head, layer."""
    places = _places(claim)[_scores(claim) == threshold]
    token, head = places // heads[layer], places % heads[layer]
    return (token * max(heads) + head) * len(heads) + layer


def _places(claim: Claim) -> Tensor:
    assert claim.places is not None
    return claim.places


def _scores(claim: Claim) -> Tensor:
    assert claim.scores is not None
    return claim.scores
