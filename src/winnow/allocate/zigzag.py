"""ZigZagKV: Dynamic KV Cache Compression based on Layer Uncertainty (Zhong et al. 2024, arXiv 2412.09036)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from winnow.allocate.base import SlotPlan
from winnow.allocate.spanning import Claim, PreferenceAllocator
from winnow.errors import MethodError
from winnow.parameters import check_count, check_number, meaning
from winnow.view import WindowAttention


def least_tokens(attention: WindowAttention, share: float) -> Tensor:
    """[Hq] int64: the fewest tokens that receive `share` of what the window pays to all before it, at least 1."""
    best_first = attention.mass.double().sort(dim=1, descending=True).values.cumsum(dim=1)
    return 1 + (best_first[:, :-1] < share * best_first[:, -1:]).sum(dim=1)


@dataclass(frozen=True)
class ZigZag(PreferenceAllocator):
    """Gives layers slots in proportion to how many tokens hold most of their attention, on top of a minimum.

    LMBA is the fewest tokens that hold `share` of a head's attention, as a mean over the heads. A layer gets
    B_l = B_min + (B - B_min)·L·LMBA_l/ΣLMBA slots per head (Eq. 6). B is the mean; B_min is `floor` of it, or what is
    always kept if that is more. Slots that exceed the prompt go to the other layers. Heads share evenly.
    """

    share: float = field(default=0.9, metadata=meaning("share of the attention that the counted tokens hold"))
    floor: float = field(default=0.2, metadata=meaning("share of the mean budget that every layer gets at least"))
    rows: int = field(default=32, metadata=meaning("number of last queries whose attention is counted"))

    def __post_init__(self) -> None:
        check_number(self, "share", 0, 1)
        check_number(self, "floor", 0, 1)
        check_count(self, "rows", 1)
        if self.share == 0:
            raise MethodError("ZigZag: share must be above 0; 0.9 counts the tokens that hold 90% of the attention.")

    @property
    def attention_rows(self) -> int:
        return self.rows

    def claim(self, scores: Tensor, attention: WindowAttention | None, plan: SlotPlan) -> Claim:
        assert attention is not None
        return Claim(float(least_tokens(attention, self.share).double().mean()))

    def least(self, plan: SlotPlan) -> Tensor:
        mean = plan.slots / sum(plan.heads)
        return torch.tensor(plan.heads, dtype=torch.float64, device="cpu") * max(plan.guaranteed, self.floor * mean)
