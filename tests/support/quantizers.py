"""The quantizers of CoKV and KIVI: what integers and scales must be, in float64."""

from __future__ import annotations

import numpy as np
import torch


def rounded(number: float, dtype: torch.dtype) -> float:
    """A number in the model's dtype."""
    return float(torch.tensor(number, dtype=torch.float32).to(dtype))


def assert_close(found: np.ndarray, expected: np.ndarray | float, off: float) -> None:
    """As NumPy's own assertion with an absolute tolerance alone, which takes a tenth of a millisecond."""
    assert (np.abs(found - expected) <= off).all(), (found, expected)


def assert_symmetric(numbers: np.ndarray, found: np.ndarray, bits: int, dtype: torch.dtype) -> None:
    """App. C.2 with the scale in the model's dtype: found = s·q, q the integer next to x / s inside ±(2^(b-1) - 1)."""
    most = max(1, 2 ** (bits - 1) - 1)
    scale = rounded(np.abs(numbers).max() / most, dtype)
    if scale == 0:
        np.testing.assert_array_equal(found, 0)
        return
    integers = found / scale
    assert_close(integers, integers.round(), 1e-3)
    assert np.abs(integers).max() <= most + 1e-3
    assert (np.abs(integers - (numbers / scale).clip(-most, most)) <= 0.5 + 1e-4).all()


def assert_asymmetric(numbers: np.ndarray, found: np.ndarray, bits: int, dtype: torch.dtype) -> None:
    """A group: zero is its least number, scale a (2^b - 1)-th of its range, both in the model's dtype."""
    zero = rounded(float(numbers.min()), dtype)
    scale = rounded((float(numbers.max()) - zero) / (2**bits - 1), dtype)
    if scale == 0:
        np.testing.assert_array_equal(found, zero)
        return
    integers = (found - zero) / scale
    assert_close(integers, integers.round(), 5e-3)
    assert integers.min() > -0.01
    assert integers.max() < 2**bits - 1 + 0.01
    assert (np.abs(integers - ((numbers - zero) / scale).clip(0, 2**bits - 1)) <= 0.5 + 5e-3).all()


def signed_scale(numbers: np.ndarray, bits: int, dtype: torch.dtype) -> float:
    """The number of the largest size over -2^(b-1), in the model's dtype; of two as large the one below zero."""
    lowest, highest = float(numbers.min()), float(numbers.max())
    return rounded((highest if highest > -lowest else lowest) / -(2 ** (bits - 1)), dtype)


def assert_signed(numbers: np.ndarray, found: np.ndarray, bits: int, dtype: torch.dtype) -> None:
    """found = s·q, q the integer next to x / s inside -2^(b-1) … 2^(b-1) - 1, where numbers may have been turned."""
    least, scale = -(2 ** (bits - 1)), signed_scale(numbers, bits, dtype)
    if scale == 0:
        assert_close(found, 0.0, 1e-6)
        return
    integers = found / scale
    assert_close(integers, integers.round(), 1e-2)
    assert integers.min() >= least - 1e-2
    assert integers.max() <= -least - 1 + 1e-2
    assert (np.abs(integers - (numbers / scale).clip(least, -least - 1)) <= 0.5 + 1e-2).all()
