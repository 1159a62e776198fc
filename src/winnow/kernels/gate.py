"""Gates: outputs of one linear layer times activations of another's."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from winnow.kernels.native_args import ACTIVATIONS, Activation, GateArgs


class Gate(NamedTuple):
    """activation(min(g, limit)) · (clamp(u, −limit, limit) + offset) of a gate's output g and one that it gates, u."""

    activation: Activation = "swish"
    """swish(x) = x / (1 + exp(−alpha · x)), which is silu where alpha is 1; gelu(x) = x (1 + erf(x / √2)) / 2, and
    gelu tanh(x) = x (1 + tanh(√(2 / π) (x + 0.044715 x³))) / 2."""
    alpha: float = 1.0
    """Finite and above 0; of swish only."""
    limit: float = math.inf
    """At least 0."""
    offset: float = 0.0

    def arguments(self) -> GateArgs:
        """Those of the compiled kernels. Raises ValueError for numbers of which there is no such gate."""
        if not (0 < self.alpha < math.inf and self.limit >= 0):
            raise ValueError(f"there is no gate whose alpha is {self.alpha} and whose limit is {self.limit}")
        return GateArgs(ACTIVATIONS[self.activation], self.alpha, self.limit, self.offset)

    def gated(self, gates: Tensor, ups: Tensor) -> Tensor:
        """A gate's outputs and those that it gates, of one shape -> gated, of that shape: the definition, in torch."""
        kept = gates.clamp(max=self.limit)
        if self.activation == "swish":
            activated = kept * torch.sigmoid(self.alpha * kept)
        else:
            activated = functional.gelu(kept, approximate="tanh" if self.activation == "gelu tanh" else "none")
        return activated * (ups.clamp(-self.limit, self.limit) + self.offset)


SILU = Gate()
"""silu(g) · u of Llama and most others."""
