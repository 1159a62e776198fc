"""Linear layers by oneDNN, where torch would take another library: many rows in float32."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


@cache
def has_onednn() -> bool:
    """True if this build of torch has oneDNN, and an operator for a linear layer by it."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def linear_by_onednn(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """inputs [..., I], weight [O, I] as it is or packed by oneDNN, bias [O] -> [..., O], in one dtype on the CPU.

    torch multiplies float32 by MKL, which on processors of AMD takes more than twice as long.
    """
    outputs: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")
    return outputs
