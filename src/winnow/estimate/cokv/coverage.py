"""The number of samples that it takes until every head was in a coalition of every size."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.estimate.cokv.plan import Sampled
from winnow.estimate.cokv.sampling import HALVES, strata_of
from winnow.estimate.errors import ShapleyError
from winnow.heads.cokv_file import Halves

_TRIED = 2**16
"""Splits that are drawn to find out how many would do."""


def check_coverage(plan: Sampled, samples: int, halves: Halves = "both") -> None:
    """Raises ShapleyError, naming a number that would do, where so many samples leave a head without a value.

    A head needs a sample in each half of them and in coalitions of every size. No coalition is evaluated for this.
    halves: "first" where the rests of splits give no samples.
    """
    if covering_batches(plan, 1, HALVES, plan.batches(samples), halves) is not None:
        return
    players = plan.splits.players
    sizes = ", ".join(map(str, strata_of(plan.splits.sizes, players, halves)))
    enough = covering_batches(plan, 1, HALVES, -(-_TRIED // plan.pairs), halves)
    more = "" if enough is None else f"at least {enough * plan.pairs:,} samples, or "
    raise ShapleyError(
        f"{samples:,} samples leave some head out of all coalitions of some size ({sizes} of {players} heads), so it "
        f"would have no value there: take {more}sizes closer to one half of the heads."
    )


def covering_batches(plan: Sampled, least: int, parts: int, most: int, halves: Halves = "both") -> int | None:
    """The fewest batches in which every head is so often in a coalition of every size; None for more than `most`.

    parts: the samples are dealt out to so many in turn, and each must have every head that often.
    """
    counts: dict[tuple[int, int], Tensor] = {
        (part, size): torch.zeros(plan.splits.players, dtype=torch.long, device="cpu")
        for part in range(parts)
        for size in strata_of(plan.splits.sizes, plan.splits.players, halves)
    }
    for batch in range(most):
        first = plan.splits.first_parts(range(batch * plan.pairs, (batch + 1) * plan.pairs))
        for part in range(parts):
            dealt = first[part::parts]
            _count(counts, part, dealt)
            if halves == "both":
                _count(counts, part, ~dealt)
        if all(bool((count >= least).all()) for count in counts.values()):
            return batch + 1
    return None


def _count(counts: dict[tuple[int, int], Tensor], part: int, masks: Tensor) -> None:
    """Adds coalitions [M, n] to the counts of a part."""
    sizes = masks.sum(dim=1)
    for size in set(sizes.tolist()) - {0}:
        counts[part, size] += masks[sizes == size].sum(dim=0)
