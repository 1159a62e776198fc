"""Functions that torch.compile leaves alone: it calls them between its graphs instead of tracing them.

They count tokens, keep notes on tensors and launch kernels. Traced, a model would be compiled anew at every step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def opaque(function: Callable[P, T]) -> Callable[P, T]:
    """The function, never traced; about a microsecond a call."""
    disabled: Callable[P, T] = torch.compiler.disable(function)
    return disabled
