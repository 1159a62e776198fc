"""Bounds of the CoKV paper: what slicing loses, and how many samples bring sampling close."""

from __future__ import annotations

from math import ceil, isinf, log, sqrt

from winnow.estimate.errors import ShapleyError

CONTRIBUTION_RANGE = 2.0
"""Between the least and the largest contribution U(S) - U(rest), of utilities from 0 to 1."""


def slicing_bound(players: int, sizes: int, spread: float, delta: float) -> float:
    """Theorem 1: |SV_i - SSV_i| stays below this with probability 1 - delta.

    R·sqrt((n - h + 1)·ln(2/delta) / (2·h·n)) for h of n coalition sizes, drawn at random without replacement, with
    spread R = max SV[i, j] - min SV[i, j] over all sizes j. It counts what slicing loses, not what sampling loses; for
    sizes that were chosen instead of drawn it is a guide only.

    Raises ShapleyError for h outside 1 to n, delta outside (0, 1) and a negative spread.
    """
    if not 1 <= sizes <= players:
        raise ShapleyError(f"There are {players} coalition sizes, so {sizes} cannot be chosen: give 1 to {players}.")
    if not 0 < delta < 1:
        raise ShapleyError(f"delta must be between 0 and 1, not {delta}.")
    if spread < 0:
        raise ShapleyError(f"spread must be at least 0, not {spread}.")
    return spread * sqrt((players - sizes + 1) * log(2 / delta) / (2 * sizes * players))


def samples_needed(sizes: int, epsilon: float, delta: float, spread: float = CONTRIBUTION_RANGE) -> int:
    """Theorem 2: so many samples estimate a sliced value within epsilon with probability 1 - delta.

    h·r²·ln(2·h/delta) / (2·epsilon²), rounded up, for h coalition sizes and contributions in a range of r, from
    Hoeffding's inequality for every size. It takes every sample of a size as one for every head; a head is in j of n.

    Raises ShapleyError for no size, an epsilon that is not positive or so small that nobody can count the samples, and
    delta outside (0, 1).
    """
    _check_confidence(sizes, delta)
    if not epsilon > 0:
        raise ShapleyError(f"epsilon must be above 0, not {epsilon:g}.")
    # Divided twice: the square of a small epsilon is 0.
    needed = sizes * spread**2 * _log_of_chances(sizes, delta) / 2 / epsilon / epsilon
    if isinf(needed):
        raise ShapleyError(f"An epsilon of {epsilon:g} needs too many samples to count: give a larger one.")
    return ceil(needed)


def sampling_bound(samples: int, sizes: int, delta: float, spread: float = CONTRIBUTION_RANGE) -> float:
    """Theorem 2 the other way round: the epsilon that so many samples keep with probability 1 - delta."""
    _check_confidence(sizes, delta)
    return spread * sqrt(sizes * _log_of_chances(sizes, delta) / (2 * samples))


def _log_of_chances(sizes: int, delta: float) -> float:
    """ln(2·h/delta); finite for the smallest delta, of which no quotient is."""
    return log(2 * sizes) - log(delta)


def _check_confidence(sizes: int, delta: float) -> None:
    if sizes < 1:
        raise ShapleyError(f"At least one coalition size is needed, not {sizes}.")
    if not 0 < delta < 1:
        raise ShapleyError(f"delta must be between 0 and 1, not {delta:g}.")
