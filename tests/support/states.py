"""Outputs of kernels that go on from states, and these, held against float64."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.kernels import native


def assert_close(found: tuple[Tensor, Tensor], exact: tuple[Tensor, Tensor]) -> None:
    """Outputs are rounded to their dtype; sums in fp32 are as exact as their largest number."""
    outputs, states = found
    assert outputs.is_contiguous()
    for each, expected in zip(found, exact, strict=True):
        assert each.shape == expected.shape
        allowed = 2e-5 * (1 + expected.abs().max()) if expected.numel() else 0
        allowed = allowed + 0.51 * torch.finfo(each.dtype).eps * expected.abs()
        assert bool(((each.double() - expected).abs() <= allowed).all()), native.isa()
    assert states.dtype == torch.float32
