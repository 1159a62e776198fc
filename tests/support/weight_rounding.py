"""Kernels that round softmax weights to bfloat16, and what that may change."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from winnow.kernels import native

ROUNDED_WEIGHTS = 2**-8
"""Error as a share of weights times the sizes of values, or of what was paid: half of it from their sum."""


def rounds_weights(dtype: torch.dtype) -> bool:
    """True where the native kernels in use do so in models of `dtype`."""
    return native.isa() == "zen" and dtype is torch.bfloat16


def assert_as_close(
    actual: Tensor, expected: Tensor, tolerance: tuple[float, float], of_sizes: Callable[[], Tensor], what: str = ""
) -> None:
    """Relative and absolute tolerance, and rounding where weights are rounded.

    `of_sizes` gives what `expected` is where values are as large, but positive.
    """
    relative, absolute = tolerance
    allowed = relative * expected.abs() + absolute
    if rounds_weights(actual.dtype):
        allowed = allowed + ROUNDED_WEIGHTS * of_sizes()
    error = (actual.double() - expected).abs()
    off = ~(error <= allowed)
    assert not off.any(), f"{what}: {int(off.sum())} of {off.numel()} are off, by up to {float(error[off].max()):.3g}"
