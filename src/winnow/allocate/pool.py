"""One pool of slots for all heads of all layers: what KVzip and others evict from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from winnow.allocate.base import Allocation, Allocator, SlotPlan
from winnow.allocate.rounding import full_tensor
from winnow.allocate.uniform import even_layers
from winnow.errors import MethodError
from winnow.select import kth_largest


def pooled(scores: Sequence[Tensor], total: int) -> list[Tensor]:
    """Each head's share of the `total` best scores of all layers together: [H, N] per layer -> [H] int64, CPU.

    Equal scores go to the lower token index, then to the lower head index, then to the lower layer.
    """
    heads = [len(layer) for layer in scores]
    if total <= 0:
        return [full_tensor(count, 0) for count in heads]
    together = torch.cat([layer.flatten() for layer in scores])
    threshold = kth_largest(together, min(total, len(together)))
    above = torch.cat([(layer > threshold).sum(dim=1) for layer in scores])
    # [T, 3] layer, head and token of every tie, the lowest token first
    tied = torch.cat([F.pad((layer == threshold).nonzero(), (1, 0), value=i) for i, layer in enumerate(scores)])
    for column in range(3):  # stable: a later one decides, an earlier one breaks ties
        tied = tied[tied[:, column].argsort(stable=True)]
    taken = tied[: total - int(above.sum())]
    firsts = torch.tensor([0, *heads[:-1]], device=taken.device).cumsum(dim=0)  # of each layer, among all heads
    slots = above + (firsts[taken[:, 0]] + taken[:, 1]).bincount(minlength=sum(heads))
    return list(slots.cpu().split(heads))


@dataclass(frozen=True)
class Global(Allocator):
    """Heads of all layers compete for all slots, without a floor: what scores highest stays, wherever it is.

    Only tokens that a scorer always keeps (scores of +inf) are sure of theirs. It divides slots once the scores of all
    layers are known (`for_scores`).
    """

    @property
    def pools(self) -> bool:
        return True

    def for_scores(self, scores: Sequence[Tensor]) -> Allocator:
        return PooledSlots(tuple(scores))

    def layer_totals(self, plan: SlotPlan) -> list[int]:
        return even_layers(plan)

    def head_slots(self, scores: Tensor, allocation: Allocation, layer: int) -> Tensor:
        """Refused. Raises MethodError: one layer's scores do not tell."""
        raise MethodError(
            "Global divides the slots of all layers together; give it the scores of all of them (for_scores), as "
            "caches do."
        )


@dataclass(frozen=True, eq=False)
class PooledSlots(Allocator):
    """The slots of one prompt, from the scores [H, N] of all its layers."""

    scores: tuple[Tensor, ...]
    _known: dict[int, list[Tensor]] = field(default_factory=dict, repr=False)

    @property
    def of_one_prompt(self) -> bool:
        return True

    def layer_totals(self, plan: SlotPlan) -> list[int]:
        return [int(slots.sum()) for slots in self._slots(plan)]

    def head_slots(self, scores: Tensor, allocation: Allocation, layer: int) -> Tensor:
        return self._slots(allocation.plan)[layer]

    def _slots(self, plan: SlotPlan) -> list[Tensor]:
        """Every layer asks for the same, hence the memory."""
        if plan.slots not in self._known:
            self._known[plan.slots] = pooled(self.scores, plan.slots)
        return self._known[plan.slots]
