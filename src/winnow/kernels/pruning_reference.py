"""Rows of numbers split into the channels that stay and what stands for the others.

The definition the native kernels are held to, to the bit. Statistics are sums in double precision, sixteen at a time,
and those sixteen by halves, as vectors add them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from winnow.kernels.formats.bits import pack_flags

Statistic = Literal["pruned sizes", "pruned numbers", "pruned rms", "pruned moments", "mean", "moments"]
"""Numbers that say how large a row's sizes are. Pruned ones: their mean; that of the numbers; root mean square; mean,
deviation and largest. All: mean; mean and deviation."""

_SUMS = 16


@dataclass(frozen=True)
class KeepRule:
    """Channels of a row that stay: its largest, the lower channel first among equals."""

    most: int
    """Channels, from 1 on; where a share decides, no row can keep more."""
    share: float | None = None
    """Not so many, but the fewest whose sizes reach this share of the row's, at least one."""
    levels: tuple[int, ...] = ()
    """Ascending. Not the fewest, but the level of the first bound that is no less than these, or else the last."""
    bounds: tuple[int, ...] = ()
    """Ascending, one for every level; none: the levels themselves."""
    squared: bool = False
    """The share is one of the squares of sizes."""

    def level_bounds(self) -> tuple[int, ...]:
        """The bound of every level."""
        return self.bounds or self.levels


class SegmentRule(NamedTuple):
    """Channels of a row that stay: the largest of every segment of its head's, the lower first among equals."""

    columns: Tensor
    """int64 [H, D]: the channels of every head, segment after segment."""
    segments: tuple[tuple[int, int], ...]
    """Channels of every segment, and how many of them stay."""

    @property
    def most(self) -> int:
        """Channels that a row keeps."""
        return sum(kept for _, kept in self.segments)


class SaliencyScale(NamedTuple):
    """Norms that make sizes of magnitudes: the size of an entry is |number| / |inverse norm|."""

    inverse_norms: Tensor
    """fp32 [H, D], contiguous"""
    head: Tensor
    """[S] int64: the head of every row."""


class PrunedRows(NamedTuple):
    """Rows [S, D], split; written as `winnow.kernels.formats.pruned.Pruned` says."""

    rows: Tensor
    """[S, T] kept numbers, ascending by channel; flat, row after row, where a share decides."""
    counts: Tensor | None
    """[S] int64: how many every row kept, where a share decides."""
    masks: Tensor
    stats: Tensor
    """fp32 [S, 1], [S, 2] for moments, [S, 3] for pruned moments."""
    signs: Tensor | None


def prune_rows(
    rows: Tensor, rule: KeepRule, statistic: Statistic, signed: bool, scale: SaliencyScale | None = None
) -> PrunedRows:
    """Finite rows [S, D] split by a rule; without a scale the size of a number is its magnitude."""
    sizes = _sizes(rows, scale)
    return _split(rows, sizes, _mask(sizes, rule), statistic, signed, None if rule.share is not None else rule.most)


def prune_segments(
    rows: Tensor, rule: SegmentRule, statistic: Statistic, signed: bool, scale: SaliencyScale
) -> PrunedRows:
    """Finite rows [S, D] split by a rule; the heads of rows are those of the scale."""
    sizes = _sizes(rows, scale)
    return _split(rows, sizes, _largest_of_segments(sizes, rule, scale.head), statistic, signed, rule.most)


def _sizes(rows: Tensor, scale: SaliencyScale | None) -> Tensor:
    """fp32 [S, D]"""
    sizes = rows.float().abs()
    return sizes if scale is None else sizes / scale.inverse_norms.abs()[scale.head]


def _split(
    rows: Tensor, sizes: Tensor, mask: Tensor, statistic: Statistic, signed: bool, kept: int | None
) -> PrunedRows:
    """Rows [S, D] split by a mask; all rows keep `kept`, or each its own number."""
    masks, stats = pack_flags(mask), _statistic(rows.float(), sizes, mask, statistic)
    if kept is not None:
        gone = rows.shape[1] - kept
        signs = pack_flags((rows[~mask] < 0).view(len(rows), gone)) if signed else None
        return PrunedRows(rows[mask].view(len(rows), kept), None, masks, stats, signs)
    counts = mask.sum(1)
    signs = _flat_signs(rows < 0, mask, rows.shape[1] - counts) if signed else None
    return PrunedRows(rows[mask], counts, masks, stats, signs)


# --- which channels ------------------------------------------------------------------------------------------------


def _mask(sizes: Tensor, rule: KeepRule) -> Tensor:
    """bool [S, D]: the channels that stay."""
    if rule.share is None:
        return _largest(sizes, rule.most)
    counts, order = _fewest(sizes, rule.share, rule.squared)
    if rule.levels:
        levels, bounds = (torch.tensor(each, device=sizes.device) for each in (rule.levels, rule.level_bounds()))
        counts = levels[torch.searchsorted(bounds, counts).clamp(max=len(levels) - 1)]
    return _first_of(order, counts)


def _largest(sizes: Tensor, count: int) -> Tensor:
    """bool [S, D]: the `count` largest of every row, the lower channel first among equals."""
    if count == 0:
        return torch.zeros_like(sizes, dtype=torch.bool)
    threshold = sizes.topk(count, dim=1, sorted=False).values.amin(1, keepdim=True)
    keep, tied = sizes > threshold, sizes == threshold
    wanted = count - keep.sum(1)
    if bool((tied.sum(1) != wanted).any()):
        tied &= tied.cumsum(1) <= wanted[:, None]
    return keep | tied


def _largest_of_segments(sizes: Tensor, rule: SegmentRule, head: Tensor) -> Tensor:
    """bool [S, D]: of every segment of a row's head the channels that stay."""
    # Ascending inside a segment, so that the lower channel is the first among equals.
    widths = [width for width, _ in rule.segments]
    columns = torch.cat([each.sort(1).values for each in rule.columns.split(widths, 1)], 1)[head]
    pieces = zip(sizes.gather(1, columns).split(widths, 1), rule.segments, strict=True)
    marks = torch.cat([_largest(piece, kept) for piece, (_, kept) in pieces], 1)
    return torch.zeros_like(marks).scatter_(1, columns, marks)


def _fewest(sizes: Tensor, share: float, squared: bool) -> tuple[Tensor, Tensor]:
    """Fewest numbers of a row, the largest, that reach `share` of its sum, at least one [S]; and its order [S, D]."""
    ordered, order = sizes.sort(dim=1, descending=True, stable=True)
    # In double precision: which channel is the one that reaches the share must not depend on the order of a sum.
    summed = ordered.double().square() if squared else ordered
    reached = summed.cumsum(1, dtype=torch.float64)
    return (reached[:, :-1] < share * reached[:, -1:]).sum(1) + 1, order


def _first_of(order: Tensor, counts: Tensor) -> Tensor:
    """bool [S, D]: of every row the first counts[s] columns in its order [S, D]."""
    chosen = torch.arange(order.shape[1], device=order.device) < counts[:, None]
    return torch.zeros_like(chosen).scatter_(1, order, chosen)


# --- what stands for the others ------------------------------------------------------------------------------------


def _statistic(numbers: Tensor, sizes: Tensor, mask: Tensor, statistic: Statistic) -> Tensor:
    """fp32 [S, 1], [S, 2] or [S, 3]"""
    if statistic == "mean":
        return (_sums(sizes) / sizes.shape[1]).float()
    if statistic == "moments":
        return _moments(sizes, torch.zeros_like(mask))
    gone = (~mask).sum(1, keepdim=True).clamp(min=1)
    pruned = sizes.masked_fill(mask, 0.0)
    if statistic == "pruned rms":
        return (_sums(pruned.double().square()) / gone).sqrt().float()
    if statistic == "pruned moments":
        return torch.cat([_moments(sizes, mask), pruned.amax(1, keepdim=True)], 1)
    return (_sums(pruned if statistic == "pruned sizes" else numbers.masked_fill(mask, 0.0)) / gone).float()


def _sums(numbers: Tensor) -> Tensor:
    """[S, 1] float64: the sums of rows [S, D]."""
    padded = torch.nn.functional.pad(numbers, (0, -numbers.shape[1] % _SUMS)).double()
    sums = torch.zeros_like(padded[:, :_SUMS])
    for sixteen in padded.split(_SUMS, dim=1):
        sums += sixteen
    while sums.shape[1] > 1:
        first, second = sums.chunk(2, 1)
        sums = first + second
    return sums


def _moments(sizes: Tensor, mask: Tensor) -> Tensor:
    """[S, 2] fp32: means and standard deviations of rows [S, D], without what is masked."""
    counts = (~mask).sum(1, keepdim=True).clamp(min=1)
    mean = _sums(sizes.masked_fill(mask, 0.0)) / counts
    near = mean.float()
    squares = (sizes - near).double().square().masked_fill(mask, 0.0).cumsum(1)[:, -1:]
    rest = (mean - near).float().double()
    variance = squares / counts - rest * rest
    return torch.cat([near, torch.where(variance > 0, variance, 0.0).sqrt().float()], 1)


def _flat_signs(negative: Tensor, mask: Tensor, counts: Tensor) -> Tensor:
    """uint8 [bytes]: the signs of pruned entries, every row from a whole byte on."""
    order = mask.int().argsort(dim=1, stable=True)
    packed = pack_flags(negative.gather(1, order) & (torch.arange(mask.shape[1], device=mask.device) < counts[:, None]))
    used = torch.arange(packed.shape[1], device=mask.device) < (-(-counts // 8))[:, None]
    return packed[used]
