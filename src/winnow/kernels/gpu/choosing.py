"""Channels that stay of a slot: its largest, found by a threshold whose bits are tried one after another.

Sizes are not negative, so their bits order as they do, and so do those of a column that takes no part, which are -1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from winnow.kernels.gpu.forms import ELEMENTS
from winnow.kernels.pruning_reference import KeepRule, SegmentRule, Statistic

_UNUSED = {torch.float32: 0, torch.bfloat16: 16, torch.float16: 13}
"""Last bits of a number in fp32 that are 0 where it was of that dtype."""
_BITS: tl.constexpr = tl.constexpr(31)
"""Bits of a size without its sign."""
_HIGHEST: tl.constexpr = tl.constexpr(1 << 30)


@dataclass(frozen=True)
class Splitting:
    """The way in which rows are split, as far as a kernel is compiled for it."""

    element: tl.dtype
    dim: int
    most: int
    """Channels that a row keeps, at most."""
    statistic: Statistic
    signed: bool
    """True if entries that are gone leave their signs."""
    sized: bool
    """True if sizes are magnitudes over norms."""
    unused: int
    """Last bits of sizes that are always 0."""
    share: float = 0.0
    squared: bool = False
    """True if the share is one of squares of sizes."""
    flat: bool = False
    """True if a share decides how many stay."""
    levels: tuple[int, ...] = ()
    bounds: tuple[int, ...] = ()
    segments: tuple[int, ...] = ()
    """Channels that stay of each segment."""

    @property
    def mask_bytes(self) -> int:
        """Bytes of a slot's mask."""
        return -(-self.dim // 8)

    @property
    def words(self) -> int:
        """Words of 32 bits in a slot's mask."""
        return -(-self.dim // 32)

    @property
    def sign_words(self) -> int:
        """Words of 32 bits in a slot's signs, at most."""
        return self.words if self.flat else -(-(self.dim - self.most) // 32)

    @property
    def all_channels(self) -> bool:
        """True if the statistic is one of all channels."""
        return self.statistic in ("mean", "moments")

    @property
    def stats(self) -> int:
        """Numbers of a slot's statistic."""
        return {"moments": 2, "pruned moments": 3}.get(self.statistic, 1)


def splitting(
    dtype: torch.dtype, dim: int, rule: KeepRule | SegmentRule, statistic: Statistic, signed: bool, sized: bool
) -> Splitting:
    """The splitting of rows of D numbers by a rule. Raises ValueError where the rule does not fit them."""
    bounds = () if isinstance(rule, SegmentRule) else rule.level_bounds()
    levels = () if isinstance(rule, SegmentRule) else rule.levels
    if not 0 < rule.most <= dim or len(bounds) != len(levels) or (levels and levels[-1] != rule.most):
        raise ValueError(f"{rule} does not fit rows of {dim} channels")
    # Quotients have all bits.
    plain = Splitting(ELEMENTS[dtype], dim, rule.most, statistic, signed, sized, 0 if sized else _UNUSED[dtype])
    facts = vars(plain)
    if isinstance(rule, SegmentRule):
        return Splitting(**facts | {"segments": tuple(kept for _, kept in rule.segments)})
    if rule.share is None:
        return plain
    varying = {"share": rule.share, "squared": rule.squared, "levels": levels, "bounds": bounds}
    return Splitting(**facts | varying | {"flat": True})


@triton.jit
def kept_channels(order, sizes, segment, SPLITTING: tl.constexpr, N: tl.constexpr):
    """int32 [N, WIDE]: 1 where a channel stays.

    order: int32 [N, WIDE], bits of sizes, -1 beyond the head's. segment: the same shape, where there are segments.
    """
    if len(SPLITTING.segments) > 0:
        keep = order * 0
        for number in tl.static_range(len(SPLITTING.segments)):
            many = tl.full([N], SPLITTING.segments[number], tl.int32)
            keep |= _largest(tl.where(segment == number, order, -1), many, SPLITTING.unused)
    elif SPLITTING.flat:
        needed = _fewest(order, sizes, SPLITTING, N)
        keep = _largest(order, _level_of(needed, SPLITTING), SPLITTING.unused)
    else:
        keep = _largest(order, tl.full([N], SPLITTING.most, tl.int32), SPLITTING.unused)
    return keep


@triton.jit
def _largest(order, many, UNUSED: tl.constexpr):
    """int32 [N, WIDE]: 1 for the `many` [N] largest of a row, the lower column first among equals."""
    edge, bit = many * 0, many * 0 + _HIGHEST
    for _ in range(_BITS - UNUSED):
        tried = edge | bit
        found = tl.sum((order >= tried[:, None]).to(tl.int32), 1)
        edge = tl.where(found >= many, tried, edge)
        bit = bit >> 1
    above = (order > edge[:, None]).to(tl.int32)
    tied = (order == edge[:, None]).to(tl.int32)
    left = many - tl.sum(above, 1)
    return above | (tied & (tl.cumsum(tied, 1) <= left[:, None]).to(tl.int32))


@triton.jit
def _fewest(order, sizes, SPLITTING: tl.constexpr, N: tl.constexpr):
    """int32 [N]: fewest of the largest sizes, or squares of them, that reach the share of their sum, at least one."""
    worth = tl.where(order >= 0, sizes, 0.0).to(tl.float64)
    if SPLITTING.squared:
        worth = worth * worth
    target = tl.sum(worth, 1) * tl.full([N], SPLITTING.share, tl.float64)
    edge, bit = tl.zeros([N], tl.int32), tl.full([N], _HIGHEST, tl.int32)
    for _ in range(_BITS - SPLITTING.unused):
        tried = edge | bit
        taken = order >= tried[:, None]
        short = tl.sum(tl.where(taken, worth, 0.0), 1) < target
        edge = tl.where(short | (tl.sum(taken.to(tl.int32), 1) == 0), edge, tried)
        bit = bit >> 1
    above, tied = order > edge[:, None], order == edge[:, None]
    each = edge.to(tl.float32, bitcast=True).to(tl.float64)
    if SPLITTING.squared:
        each = each * each
    # Of sizes that are equal, as many as it takes.
    equal = tl.cumsum(tied.to(tl.int32), 1)
    reached = tl.sum(tl.where(above, worth, 0.0), 1)[:, None] + equal.to(tl.float64) * each[:, None]
    lacking = tied & (reached < target[:, None]) & (equal < tl.max(equal, 1)[:, None])
    return tl.sum(above.to(tl.int32) + lacking.to(tl.int32), 1) + 1


@triton.jit
def _level_of(needed, SPLITTING: tl.constexpr):
    """int32 [N]: the level of the first bound that is no less than what is needed [N], or else the last."""
    count = needed
    if len(SPLITTING.levels) > 0:
        count = needed * 0 + SPLITTING.most
        # From the last level on; the last one to fit is the first in their order.
        for number in tl.static_range(len(SPLITTING.levels) - 1, -1, -1):
            count = tl.where(needed <= SPLITTING.bounds[number], SPLITTING.levels[number], count)
    return count
