"""A bound on the distance of a sliced Shapley value from the Shapley value."""

from __future__ import annotations

from math import log, sqrt

from winnow.estimate.errors import ShapleyError


def slicing_bound(players: int, sizes: int, spread: float, delta: float) -> float:
    """Theorem 1: |SV_i - SSV_i| stays below this with probability 1 - delta.

    R·sqrt((n - h + 1)·ln(2/delta) / (2·h·n)) for h of n coalition sizes, drawn at random without replacement, with
    spread R = max SV[i, j] - min SV[i, j] over all sizes j. It counts what slicing loses, not what sampling loses; for
    sizes that were chosen instead of drawn it is a guide only.

    Raises ShapleyError for h outside 1 to n, delta outside (0, 1) and a negative spread.
    """
    if not 1 <= sizes <= players:
        raise ShapleyError(f"{sizes} of {players} coalition sizes cannot be chosen: give 1 to {players}.")
    if not 0 < delta < 1:
        raise ShapleyError(f"delta must be between 0 and 1, not {delta}.")
    if spread < 0:
        raise ShapleyError(f"spread must be at least 0, not {spread}.")
    return spread * sqrt((players - sizes + 1) * log(2 / delta) / (2 * sizes * players))
