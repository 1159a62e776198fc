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

Statistic = Literal["pruned sizes", "pruned numbers", "mean", "moments"]
"""Mean of the pruned sizes of a row, or numbers; mean of all its sizes; that and their deviation."""


_SUMS = 16


@dataclass(frozen=True)
class KeepRule:
    """Channels of a row that stay: its largest, the lower channel first among equals."""

    most: int
    """Channels, from 1 on; where a share decides, no row can keep more."""
    share: float | None = None
    """Not so many, but the fewest whose sizes reach this share of the row's, at least one."""
    levels: tuple[int, ...] = ()
    """Ascending. Not the fewest, but the first of these that is no less, or else the last."""


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
    """fp32 [S, 1], or [S, 2] for moments."""
    signs: Tensor | None


def prune_rows(
    rows: Tensor, rule: KeepRule, statistic: Statistic, signed: bool, scale: SaliencyScale | None = None
) -> PrunedRows:
    """Finite rows [S, D] split by a rule; without a scale the size of a number is its magnitude."""
    numbers = rows.float()
    sizes = numbers.abs()
    if scale is not None:
        sizes = sizes / scale.inverse_norms.abs()[scale.head]
    mask = _mask(sizes, rule)
    masks, stats = pack_flags(mask), _statistic(numbers, sizes, mask, statistic)
    if rule.share is None:
        gone = rows.shape[1] - rule.most
        signs = pack_flags((rows[~mask] < 0).view(len(rows), gone)) if signed else None
        return PrunedRows(rows[mask].view(len(rows), rule.most), None, masks, stats, signs)
    counts = mask.sum(1)
    signs = _flat_signs(rows < 0, mask, rows.shape[1] - counts) if signed else None
    return PrunedRows(rows[mask], counts, masks, stats, signs)


# --- which channels ------------------------------------------------------------------------------------------------


def _mask(sizes: Tensor, rule: KeepRule) -> Tensor:
    """bool [S, D]: the channels that stay."""
    if rule.share is None:
        return _largest(sizes, rule.most)
    counts, order = _fewest(sizes, rule.share)
    if rule.levels:
        levels = torch.tensor(rule.levels, device=sizes.device)
        counts = levels[torch.searchsorted(levels, counts).clamp(max=len(levels) - 1)]
    return _first_of(order, counts)


def _largest(sizes: Tensor, count: int) -> Tensor:
    """bool [S, D]: the `count` largest of every row, the lower channel first among equals."""
    threshold = sizes.topk(count, dim=1, sorted=False).values.amin(1, keepdim=True)
    keep, tied = sizes > threshold, sizes == threshold
    wanted = count - keep.sum(1)
    if bool((tied.sum(1) != wanted).any()):
        tied &= tied.cumsum(1) <= wanted[:, None]
    return keep | tied


def _fewest(sizes: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Fewest numbers of a row, the largest, that reach `share` of its sum, at least one [S]; and its order [S, D]."""
    ordered, order = sizes.sort(dim=1, descending=True, stable=True)
    # In double precision: which channel is the one that reaches the share must not depend on the order of a sum.
    reached = ordered.cumsum(1, dtype=torch.float64)
    return (reached[:, :-1] < share * reached[:, -1:]).sum(1) + 1, order


def _first_of(order: Tensor, counts: Tensor) -> Tensor:
    """bool [S, D]: of every row the first counts[s] columns in its order [S, D]."""
    chosen = torch.arange(order.shape[1], device=order.device) < counts[:, None]
    return torch.zeros_like(chosen).scatter_(1, order, chosen)


# --- what stands for the others ------------------------------------------------------------------------------------


def _statistic(numbers: Tensor, sizes: Tensor, mask: Tensor, statistic: Statistic) -> Tensor:
    """fp32 [S, 1] or [S, 2]"""
    if statistic in ("pruned sizes", "pruned numbers"):
        chosen = sizes if statistic == "pruned sizes" else numbers
        gone = (~mask).sum(1, keepdim=True).clamp(min=1)
        return (_sums(chosen.masked_fill(mask, 0.0)) / gone).float()
    mean = _sums(sizes) / sizes.shape[1]
    return mean.float() if statistic == "mean" else torch.cat([mean.float(), _deviations(sizes, mean)], 1)


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


def _deviations(sizes: Tensor, mean: Tensor) -> Tensor:
    """[S, 1] fp32: the standard deviations of rows [S, D] around their means [S, 1] float64."""
    near = mean.float()
    squares = (sizes - near).double().square().cumsum(1)[:, -1:]
    rest = (mean - near).float().double()
    variance = squares / sizes.shape[1] - rest * rest
    return torch.where(variance > 0, variance, 0.0).sqrt().float()


def _flat_signs(negative: Tensor, mask: Tensor, counts: Tensor) -> Tensor:
    """uint8 [bytes]: the signs of pruned entries, every row from a whole byte on."""
    order = mask.int().argsort(dim=1, stable=True)
    packed = pack_flags(negative.gather(1, order) & (torch.arange(mask.shape[1], device=mask.device) < counts[:, None]))
    used = torch.arange(packed.shape[1], device=mask.device) < (-(-counts // 8))[:, None]
    return packed[used]
