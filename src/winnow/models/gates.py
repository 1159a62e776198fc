"""Gates of models, which are found by trying them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from winnow.kernels.gate import Gate

Gating = Callable[[Tensor, Tensor], Tensor]
"""A gate's outputs [T, O], and those that it gates [T, O] -> gated [T, O]."""

_FAR = 1e6
"""A number beyond the limit of every gate that has one."""


@torch.no_grad()
def gate_of(gating: Gating, outputs: int, dtype: torch.dtype) -> Gate | None:
    """The gate that a function computes for so many outputs, in float32 as in a model's dtype; None for all else."""
    # In float32 to tell gates from each other; in a dtype that some models round each step to, for what else they do.
    kinds = ((torch.float32, 1e-5, 1e-6), (dtype, 0.02, 0.01))
    for gate in _candidates(gating, outputs):
        if all(_is_close(gating, gate, _numbers(outputs, each), rtol, atol) for each, rtol, atol in kinds):
            return gate
    return None


def _candidates(gating: Gating, outputs: int) -> list[Gate]:
    """A gate of each activation; those of 1 tell what else there is to know, if it is a gate at all."""
    ups = torch.tensor([0, 1, _FAR], dtype=torch.float64, device="cpu")[:, None].expand(-1, outputs).contiguous()
    found = gating(torch.ones_like(ups), ups)
    if found.shape != ups.shape:
        return []
    of_none, of_one, of_far = found[:, 0].tolist()
    activated = of_one - of_none
    if not 0.5 < activated < 1:
        return []
    offset = of_none / activated
    limit = of_far / activated - offset
    if limit < 0:
        return []
    limit = limit if limit < _FAR / 2 else math.inf
    swish = Gate("swish", -math.log(1 / activated - 1), limit, offset)
    return [swish, swish._replace(activation="gelu tanh", alpha=1.0), swish._replace(activation="gelu", alpha=1.0)]


def _numbers(outputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A gate's outputs and those that it gates, small and large, of which fp16 holds all products."""
    draw = torch.Generator().manual_seed(0)
    rows = 6 + 2000 // outputs
    numbers = torch.randn(2, rows, outputs, generator=draw, dtype=torch.float32, device="cpu")
    powers = torch.arange(rows, dtype=torch.float32, device="cpu")[:, None]
    return (numbers[0] * 10 ** (powers % 3)).to(dtype), (numbers[1] * 10 ** (powers % 2)).to(dtype)


def _is_close(gating: Gating, gate: Gate, numbers: tuple[Tensor, Tensor], rtol: float, atol: float) -> bool:
    """True for what the gate gives for numbers in their shape and dtype; atol: of each that is gated."""
    gates, ups = numbers
    found, expected = gating(gates, ups), gate.gated(gates.double(), ups.double())
    if found.shape != ups.shape or found.dtype != ups.dtype:
        return False
    bound = rtol * expected.abs() + atol * (1 + ups.double().abs())
    return bool(((found.double() - expected).abs() <= bound).all())
