"""The seeds of an estimation: those that every reader of a journal takes."""

from __future__ import annotations

from winnow.typed import Between

SEEDS = Between(-(2**63), 2**63 - 1)
"""The seeds that there are: whole numbers of 64 bits."""


def is_seed(number: int) -> bool:
    """True for one of them."""
    return SEEDS.least <= number <= SEEDS.most
