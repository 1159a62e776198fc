"""Coordinates in which numbers are packed: rows after a Walsh–Hadamard transform, which spreads outliers.

With D = m·2^b, m odd, every 2^b neighboring channels x become H·x / sqrt(2^b), H Sylvester's matrix. The transform is
orthonormal and its own inverse, so q·k = (Hq)·(Hk). One order of additions everywhere, so that packed numbers are the
same to the bit whoever transforms: butterflies of channels 1 apart, then 2, 4 … , and one product at the end.
"""

from __future__ import annotations

from math import sqrt

from torch import Tensor


def hadamard_block(dim: int) -> int:
    """The largest power of two that divides `dim`: the channels that are mixed with each other."""
    return dim & -dim


def hadamard(rows: Tensor) -> Tensor:
    """Rows [..., D] fp32 -> the same transformed, or transformed rows as they were."""
    dim = rows.shape[-1]
    block = hadamard_block(dim)
    apart = 1
    while apart < block:
        pairs = rows.reshape(*rows.shape[:-1], dim // (2 * apart), 2, apart)
        first, second = pairs.unbind(-2)
        rows = pairs.new_empty(pairs.shape)
        rows[..., 0, :] = first + second
        rows[..., 1, :] = first - second
        rows = rows.view(*rows.shape[:-3], dim)
        apart *= 2
    return rows * (1 / sqrt(block))
