"""The quantizers of CoKV and KIVI: what integers and scales must be, in float64."""

from __future__ import annotations

import numpy as np
import torch


def rounded(number: float, dtype: torch.dtype) -> float:
    """A number in the model's dtype."""
    return float(torch.tensor(number, dtype=torch.float32).to(dtype))


def assert_symmetric(numbers: np.ndarray, found: np.ndarray, bits: int, dtype: torch.dtype) -> None:
    """App. C.2 with the scale in the model's dtype: found = s·q, q the integer next to x / s inside ±(2^(b-1) - 1)."""
    most = max(1, 2 ** (bits - 1) - 1)
    scale = rounded(np.abs(numbers).max() / most, dtype)
    if scale == 0:
        np.testing.assert_array_equal(found, 0)
        return
    integers = found / scale
    np.testing.assert_allclose(integers, integers.round(), atol=1e-3)
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
    np.testing.assert_allclose(integers, integers.round(), atol=5e-3)
    assert integers.min() > -0.01
    assert integers.max() < 2**bits - 1 + 0.01
    assert (np.abs(integers - ((numbers - zero) / scale).clip(0, 2**bits - 1)) <= 0.5 + 5e-3).all()


SHARES = (1.0, 0.93, 0.86, 0.79)


def fitted_errors(numbers: np.ndarray, bits: int, dtype: torch.dtype) -> dict[float, float]:
    """Squared error of a row by scale: the number of the largest size meets -2^(b-1), or lies a little beyond it."""
    least, largest = -(2 ** (bits - 1)), float(numbers[np.abs(numbers).argmax()])
    found: dict[float, float] = {}
    for share in SHARES:
        scale = rounded(largest * share / least, dtype)
        integers = (numbers / scale).round().clip(least, -least - 1) if scale else np.zeros_like(numbers)
        found[scale] = float(((integers * scale - numbers) ** 2).sum())
    return found


def assert_fitted(numbers: np.ndarray, found: np.ndarray, bits: int, dtype: torch.dtype) -> None:
    """Integers next to numbers on one of the scales, whose squared error no other one's is less than."""
    errors = fitted_errors(numbers, bits, dtype)
    least = -(2 ** (bits - 1))
    for scale, error in errors.items():
        if error > min(errors.values()) * (1 + 1e-4):
            continue
        if not scale:
            np.testing.assert_array_equal(found, 0)
            return
        integers = found / scale
        on_the_grid = np.abs(integers - integers.round()).max() < 1e-2
        if on_the_grid and (np.abs(integers - (numbers / scale).clip(least, -least - 1)) <= 0.5 + 1e-2).all():
            return
    raise AssertionError(f"{found} is not {numbers} on the best of {errors}")
