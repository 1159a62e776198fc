"""Functions that torch.compile leaves alone: it calls them between its graphs instead of tracing them.

They count tokens, keep notes on tensors and launch kernels. Traced, a model would be compiled anew at every step.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def opaque(function: Callable[P, T]) -> Callable[P, T]:
    """The function, never traced, nor what it calls."""
    if isinstance(function, FunctionType) and _skip(function):
        return function
    disabled: Callable[P, T] = torch.compiler.disable(function)
    return disabled


def _skip(function: FunctionType) -> bool:
    """Marks a function as what torch.compile is to leave alone; False where this release of torch has no such mark.

    The wrapper that `torch.compiler.disable` makes takes half a microsecond a call in a loop, and more between a
    model's layers, compiled or not. The mark takes nothing: on the function, where that wrapper bears it as well, it
    ends the graph before a call; on the function's code it keeps the call itself, and all within, as it is.
    """
    try:
        from torch._C._dynamo.eval_frame import set_code_exec_strategy
        from torch._dynamo.types import FrameAction, FrameExecStrategy
    except ImportError:
        return False
    set_code_exec_strategy(function.__code__, FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP))
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return True
