"""Trials of a model's own functions: they are served by kernels only where these give the same."""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from torch import Tensor

from winnow.models.calls import Function

PACKED = ("cu_seqlens", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")
"""Arguments of training on several texts in one row, which the kernels do not tell apart."""
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Differences from a model's own function, at most, as a share of the largest number."""
_REFUSALS = (TypeError, ValueError, IndexError, RuntimeError)


def is_packed(named: dict[str, Any]) -> bool:
    """True for arguments that tell of several texts in one row."""
    return any(named.get(name) is not None for name in PACKED)


def takes(own: Function, names: tuple[str, ...]) -> bool:
    """True for a function whose first parameters have these names."""
    return tuple(signature(own).parameters)[: len(names)] == names


def refuses(own: Function, *given: Any, **named: Any) -> bool:
    """True for a function that takes other tensors."""
    try:
        own(*given, **named)
    except _REFUSALS:
        return True
    return False


def gives(own: Function, found: Any, *given: Any, **named: Any) -> bool:
    """True if a model's function gives tensors that are found, but for rounding; False also where it takes others."""
    try:
        expected = own(*given, **named)
    except _REFUSALS:
        return False
    some, others = _tensors(found), _tensors(expected)
    return len(some) == len(others) and all(map(_close, some, others))


def _tensors(found: Any) -> list[Tensor]:
    if isinstance(found, Tensor):
        return [found]
    return [each for each in found if isinstance(each, Tensor)] if isinstance(found, tuple) else []


def _close(found: Tensor, expected: Tensor) -> bool:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    tolerance = CLOSE[found.dtype] * float(expected.abs().max())
    return torch.allclose(found, expected, rtol=0, atol=tolerance)


def drawn(generator: torch.Generator, *sizes: int) -> Tensor:
    """Numbers in fp32."""
    return torch.randn(*sizes, generator=generator, dtype=torch.float32, device="cpu")
