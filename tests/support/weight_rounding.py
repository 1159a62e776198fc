"""Kernels that round softmax weights to bfloat16, and what that may change."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from winnow.kernels import native

ROUNDING = 2**-8
"""Largest relative error of a number rounded to bfloat16, and of a sum of such numbers."""


def rounds_weights(dtype: torch.dtype) -> bool:
    """True where the native kernels in use round weights in models of `dtype`."""
    return native.is_zen() and dtype is torch.bfloat16


def rounds_weights_of(values: Tensor) -> bool:
    """True where they round the weights of dense values [.., Dv]: pairs are taken from whole vectors of channels."""
    return rounds_weights(values.dtype) and values.shape[-1] % 32 == 0


def assert_as_close(
    actual: Tensor, expected: Tensor, tolerance: tuple[float, float], by_rounding: Callable[[], Tensor], what: str = ""
) -> None:
    """Assert closeness by a relative and an absolute tolerance, and by what rounding changes where weights are rounded.

    `actual` is [.., Dv]; `by_rounding` gives how far each number may then be off besides.
    """
    relative, absolute = tolerance
    allowed = relative * expected.abs() + absolute
    if rounds_weights_of(actual):
        allowed = allowed + by_rounding()
    error = (actual.double() - expected).abs()
    off = ~(error <= allowed)
    assert not off.any(), f"{what}: {int(off.sum())} of {off.numel()} are off, by up to {float(error[off].max()):.3g}"
