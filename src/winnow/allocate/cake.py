"""CAKE: Cascading and Adaptive KV Cache Eviction with Layer Preferences (Qin et al. 2025, arXiv 2503.12491)."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from winnow.allocate.base import SlotPlan
from winnow.allocate.spanning import Claim, PreferenceAllocator
from winnow.parameters import check_count, check_number, meaning
from winnow.view import WindowAttention


@dataclass(frozen=True)
class Cake(PreferenceAllocator):
    """Gives layers slots in proportion to how widely their attention is spread, and how much it moves.

    Preference P = H^(1/τ1)·V^(1/τ2): H is the entropy of the window's attention to the tokens before it, V its variance
    over the window's rows, summed over these tokens; both are means over the query heads. A layer gets its guaranteed
    slots and P/ΣP of all others. Slots that exceed the prompt go to the other layers, by P. Heads share evenly.
    """

    tau1: float = field(default=1.0, metadata=meaning("temperature of the spread: higher makes layers more alike"))
    tau2: float = field(default=1.0, metadata=meaning("temperature of the movement: higher makes layers more alike"))
    rows: int = field(default=32, metadata=meaning("number of last queries whose attention decides"))

    def __post_init__(self) -> None:
        check_number(self, "tau1", 0.1)
        check_number(self, "tau2", 0.1)
        check_count(self, "rows", 2)

    @property
    def attention_rows(self) -> int:
        return self.rows

    def claim(self, scores: Tensor, attention: WindowAttention | None, plan: SlotPlan) -> Claim:
        assert attention is not None
        spread = float(attention.entropy.double().mean())
        return Claim(spread ** (1 / self.tau1) * movement(attention) ** (1 / self.tau2))


def movement(attention: WindowAttention) -> float:
    """V: variance of the attention over the rows (divided by w - 1), summed over the tokens, mean over query heads."""
    if attention.rows < 2:
        return 0.0
    mean = attention.mass.double() / attention.rows
    variance = (attention.squares.double() - attention.rows * mean.square()) / (attention.rows - 1)
    return float(variance.clamp(min=0).sum(dim=1).mean())
