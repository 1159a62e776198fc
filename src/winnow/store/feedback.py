"""Rounding of keys whose errors make up for each other where queries look.

Attention sees the error e of a key only as q·e. With H the mean of q qᵀ over a head's queries, the mean square of that
is eᵀ H e. Rounded to the nearest, every channel adds to it by itself; here channels are rounded one after another, and
the channels to come make up for each error as far as H says that they can. This is LDLQ (QuIP, Chee et al. 2023, arXiv
2307.13304) and, for weights, GPTQ (Frantar et al. 2022, arXiv 2210.17323), with queries for inputs. It takes no bytes,
and no kernel knows of it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from winnow.errors import ModelError
from winnow.kernels.formats.bits import pack_rows
from winnow.kernels.formats.entries import Entries, inverse_scales, largest_integer, symmetric_scales
from winnow.kernels.formats.signed import lowest_integer, signed_scales
from winnow.kernels.rotating import rotated_rows
from winnow.store.channels import check_finite, window_queries
from winnow.store.key_statistics import KeyStatistics
from winnow.view import LayerView

QUERIES = 256
"""Last queries that say where errors matter."""
_DAMPING = 0.01
"""Mean square of what no query was seen to look at, in units of the mean over the channels."""
_TOGETHER = 32
"""Channels whose errors reach the channels behind them in one product."""


def feedback(view: LayerView, rotated: bool, statistics: KeyStatistics) -> Tensor:
    """[H, D, D] fp32, strictly upper: row j times the error of channel j is what the channels behind it give up.

    In the coordinates that `statistics` and, if `rotated`, a rotation give keys. Raises ModelError where queries are
    not those of the keys, or not finite.
    """
    if view.queries.shape[-1] != view.keys.shape[-1]:
        raise ModelError(
            f"the keys of layer {view.layer} are latents, which queries do not attend to directly; leave round=queries "
            "out."
        )
    queries = window_queries(view, QUERIES)
    check_finite(queries, view.layer, "queries")
    if statistics.spreads is not None:
        queries = queries * statistics.spreads.float()[:, None]
    if rotated:
        queries = rotated_rows(queries.flatten(0, 1)).view_as(queries)
    # A common factor changes nothing, and squares of large queries are beyond what a number can be.
    queries = queries.double() / queries.abs().amax((1, 2), keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    seen = queries.mT @ queries
    damping = _DAMPING * seen.diagonal(dim1=1, dim2=2).mean(1)
    seen += torch.diag_embed(torch.where(damping > 0, damping, 1.0)[:, None].expand(-1, seen.shape[1]))
    # With H⁻¹ = Uᵀ U, U upper, the best change of later channels for an error of channel j is row j of U over U_jj.
    # The damped mean is far from singular, so that nobody need wait for a GPU to hear that it is.
    upper = torch.linalg.cholesky_ex(torch.linalg.inv_ex(seen).inverse, upper=True).L
    return (upper / upper.diagonal(dim1=1, dim2=2)[..., None]).triu(1).float()


class Steps(NamedTuple):
    """Integers that rows may become, and what a step is worth."""

    scales: Tensor
    """[n], or [n, ceil(D / group)], in the model's dtype."""
    least: int
    """The lowest integer."""
    most: int
    group: int
    """Neighboring channels that share a scale; 0 for all of them."""

    @classmethod
    def signed(cls, rows: Tensor, bits: int, dtype: torch.dtype, group: int) -> Steps:
        """Those of `kernels/formats/signed.py`, for rows [n, D] fp32."""
        return cls(signed_scales(rows, bits, dtype, group), lowest_integer(bits), largest_integer(bits), group)

    @classmethod
    def symmetric(cls, rows: Tensor, bits: int, dtype: torch.dtype, group: int) -> Steps:
        """Those of `symmetric`, for rows [n, D] fp32."""
        most = largest_integer(bits)
        return cls(symmetric_scales(rows, bits, dtype, group), -most, most, group)

    def of(self, channels: int) -> Tensor:
        """[n, D] fp32: the step of every number, for D channels."""
        scales = self.scales.float()
        return scales.repeat_interleave(self.group, 1)[:, :channels] if self.group else scales[:, None]


def rounded_with_feedback(rows: Tensor, head: Tensor, feedback: Tensor, bits: int, steps: Steps) -> Entries:
    """Rows [n, D] fp32 of heads [n], ascending -> signed integers on the steps; feedback: [H, D, D]."""
    heads, counts = head.unique_consecutive(return_counts=True)
    sizes = steps.of(rows.shape[1]).split(counts.tolist())
    pieces = zip(heads.tolist(), rows.split(counts.tolist()), sizes, strict=True)
    # Channel by channel: each one's numbers side by side.
    found = [
        _round_channels(mine.mT.clone(), own.mT.expand_as(mine.mT), feedback[which], steps)
        for which, mine, own in pieces
    ]
    return Entries(pack_rows(torch.cat(found, 1).mT.contiguous(), bits), bits, steps.scales, group=steps.group)


def _round_channels(numbers: Tensor, sizes: Tensor, feedback: Tensor, steps: Steps) -> Tensor:
    """int8 [D, n] of numbers [D, n], which are changed, with steps of sizes [D, n]."""
    inverse = inverse_scales(sizes)
    integers, errors = torch.empty_like(numbers), torch.empty_like(numbers)
    for start in range(0, len(numbers), _TOGETHER):
        stop = min(start + _TOGETHER, len(numbers))
        for channel in range(start, stop):
            integers[channel] = (numbers[channel] * inverse[channel]).round_().clamp_(steps.least, steps.most)
            errors[channel] = numbers[channel] - integers[channel] * sizes[channel]
            numbers[channel + 1 : stop].addr_(feedback[channel, channel + 1 : stop], errors[channel], alpha=-1)
        numbers[stop:].addmm_(feedback[start:stop, stop:].mT, errors[start:stop], alpha=-1)
    return integers.to(torch.int8)
