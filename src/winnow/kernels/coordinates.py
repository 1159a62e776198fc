"""Queries and sums in the coordinates in which slots are written.

Turning a few queries, and a few sums, costs less than turning all keys and values back, as `recover` does.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from winnow.kernels.formats import PackedBlock, Part
from winnow.kernels.formats.hadamard import hadamard
from winnow.kernels.partials import Partial


class Asking(NamedTuple):
    """Queries as they meet the keys of a part."""

    queries: Tensor
    """[H, P, D], in the coordinates of the part's keys."""
    bias: Tensor | None
    """[H, P, 1], what logits lack because a mean was subtracted from the keys."""


def numbers(part: Part, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Slot indices [...] -> keys [..., D] and values [..., Dv], in the coordinates in which they are written."""
    return part.numbers(slots) if isinstance(part, PackedBlock) else part.recover(slots)


def asked_of_keys(part: Part, queries: Tensor) -> Asking:
    """Queries [H, P, D] for the keys of a part."""
    if not isinstance(part, PackedBlock):
        return Asking(queries, None)
    means = part.keys.means
    bias = None if means is None else queries @ means.float()[..., None]
    if part.keys.spreads is not None:
        queries = queries * part.keys.spreads.float()[:, None]
    return Asking(hadamard(queries) if part.keys.rotated else queries, bias)


def rotated_as_values(part: Part, rows: Tensor) -> Tensor:
    """Rows [..., Dv] as values of a part are turned: what asks them, or a sum of them, which is turned back so."""
    return hadamard(rows) if isinstance(part, PackedBlock) and part.values.rotated else rows


def sums_of_keys(part: Part, found: Partial) -> Tensor:
    """[H, P, D]: the sums of keys themselves that the sums of a part's numbers, `found.weighted`, stand for."""
    sums = found.weighted
    if not isinstance(part, PackedBlock):
        return sums
    sums = hadamard(sums) if part.keys.rotated else sums
    if part.keys.spreads is not None:
        sums = sums * part.keys.spreads.float()[:, None]
    return sums if part.keys.means is None else sums + found.total[..., None] * part.keys.means.float()[:, None]
