"""Whole slots from real shares: exact totals, limits per head, what a limit frees given to the others."""

from __future__ import annotations

from bisect import bisect_left
from typing import Literal, get_args

import torch
from torch import Tensor

from winnow.errors import BudgetError
from winnow.parameters import check_choice, meaning

Rounding = Literal["exact", "paper"]
"""exact: totals are conserved. paper: the rule of the published code, drift included."""
ROUNDING = meaning("exact: the totals are exact; paper: as in the published code")
"""Metadata of the field of an allocator that rounds either way."""

LEAST_WEIGHT = 1e-9
"""Share of the largest weight that a head without any takes of what the others cannot hold."""
_TINY = 1e-6
"""Differences below this are rounding noise of float64 (totals go up to billions), not remainders."""


def check_rounding(allocator: object) -> None:
    """Raises MethodError for a rounding that there is not."""
    check_choice(allocator, "rounding", get_args(Rounding))


def round_exactly(shares: Tensor, total: int, low: Tensor, high: Tensor, weights: Tensor | None = None) -> Tensor:
    """Largest-remainder rounding within limits.

    shares [n] real; low, high [n] int64; weights [n] > 0, how much of what is left over each takes (default
    equal). Returns [n] int64 that sums to `total` with low ≤ result ≤ high, all on the CPU. Equal remainders
    go to the lower index. Raises BudgetError where the limits do not allow the total.
    """
    check_total(total, int(low.sum()), int(high.sum()))
    real = water_fill(shares, total, low, high, weights)
    whole = (real + _TINY).floor()
    missing = total - int(whole.sum())
    remainder = ((real - whole) / _TINY).round()
    winners = torch.argsort(remainder, descending=True, stable=True)[:missing]
    whole[winners] += 1
    return whole.long()


def water_fill(shares: Tensor, total: float, low: Tensor, high: Tensor, weights: Tensor | None = None) -> Tensor:
    """[n] float64: clamp(shares + level·weights, low, high) at the one level where it sums to `total`.

    With equal weights this is the closest point to the shares, in the Euclidean sense, that keeps the limits.
    """
    shares, low, high = shares.double().cpu(), low.double(), high.double()
    weights = torch.ones_like(shares) if weights is None else weights.double()

    def filled(level: float) -> Tensor:
        return (shares + level * weights).clamp(low, high)

    if abs(float(filled(0.0).sum()) - total) < _TINY:
        return filled(0.0)
    # The sum is piecewise linear and rises with the level; its corners are where a share meets a limit.
    corners = torch.cat([(low - shares) / weights, (high - shares) / weights]).sort().values.tolist()
    above = bisect_left(corners, total - _TINY, key=lambda level: float(filled(level).sum()))
    if above == 0:
        return low
    left, right = corners[above - 1], corners[min(above, len(corners) - 1)]
    start, end = float(filled(left).sum()), float(filled(right).sum())
    return filled(left + (right - left) * (total - start) / (end - start) if end > start else right)


def check_total(total: int, least: int, most: int) -> None:
    """Raise BudgetError unless `total` slots can be given out within the limits."""
    if not least <= total <= most:
        raise BudgetError(f"{total} slots cannot be divided: the limits allow {least} to {most}; change the budget.")


def full_tensor(count: int, value: int) -> Tensor:
    """[count] int64 on the CPU, every entry `value`."""
    return torch.full((count,), value, dtype=torch.int64, device="cpu")


def shared_within(slots: Tensor, counts: Tensor, guaranteed: int) -> Tensor:
    """Slots [H] where no head gets more than the counts[h] columns it has; the others share what that frees."""
    if not bool((slots > counts).any()):
        return slots
    total = min(int(slots.sum()), int(counts.sum()))
    return round_exactly(slots, total, torch.minimum(full_tensor(len(counts), guaranteed), counts), counts)
