"""Calls that are recorded while they run, so that what follows them sees operators of torch and nothing else."""

from __future__ import annotations

import torch


def is_recorded() -> bool:
    """True under `torch.compile`, in a trace, and under autocast, which chooses other dtypes for operators."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or torch.is_autocast_enabled("cpu")
