"""Calls that are recorded while they run, so that what follows them sees operators of torch and nothing else."""

from __future__ import annotations

import torch
from torch import Tensor


def is_recorded() -> bool:
    """True under `torch.compile`, in a trace, and under autocast, which chooses other dtypes for operators."""
    # Every layer asks for every token, so without the function that torch.jit has for it.
    traced = torch._C._get_tracing_state() is not None
    return traced or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu")


def is_followed(*tensors: Tensor) -> bool:
    """True for tensors that a trace or gradients follow, or that are of another kind."""
    if is_recorded():
        return True
    if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        return True
    return any(type(each) is not Tensor for each in tensors)
