"""The Walsh–Hadamard transform of rows that a program holds, by butterflies; see `formats/hadamard.py`.

A product with a matrix would need D² numbers in registers or shared memory, and those of D 128 spill.
"""

from __future__ import annotations

from math import sqrt

import triton
import triton.language as tl

from winnow.kernels.formats.hadamard import hadamard_block


def turn_of(dim: int) -> tuple[int, float]:
    """Steps of the transform of D channels, and the factor at its end: STEPS and FACTOR of `turned_rows`."""
    block = hadamard_block(dim)
    return block.bit_length() - 1, 1 / sqrt(block)


@triton.jit
def turned_rows(rows, ROWS: tl.constexpr, WIDE: tl.constexpr, STEPS: tl.constexpr, FACTOR: tl.constexpr):
    """rows [ROWS, WIDE] fp32 transformed, in the order of additions of `hadamard`; zeros beyond D stay zeros."""
    for step in tl.static_range(STEPS):
        pairs = tl.reshape(rows, [ROWS, WIDE // (2 << step), 2, 1 << step])
        first, second = tl.split(tl.permute(pairs, [0, 1, 3, 2]))
        pairs = tl.permute(tl.join(first + second, first - second), [0, 1, 3, 2])
        rows = tl.reshape(pairs, [ROWS, WIDE])
    return rows * FACTOR
