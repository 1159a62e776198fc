"""Layers of few bits, made of a model's weights: when the model is complete, or one by one as they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from winnow.kernels.linear import outruns_torch
from winnow.models.int4 import Int4Linear
from winnow.models.int8 import Int8Linear
from winnow.models.large_pages import LargePages
from winnow.models.quantized import QuantizedLinear
from winnow.models.room import Room


class RoundedWeights(nn.Parameter):
    """Weights that are rounded already: it has their shape in a module, and the memory of a single value."""

    layers: list[QuantizedLinear]
    """One, or that of every expert, without biases."""

    @classmethod
    def instead_of(cls, parameter: nn.Parameter, layers: Sequence[QuantizedLinear]) -> Self:
        """It keeps what others noted on the parameter."""
        made = cls(torch.zeros((), dtype=parameter.dtype, device="cpu").expand(parameter.shape), requires_grad=False)
        vars(made).update(vars(parameter))
        made.layers = list(layers)
        return made


class Rounding:
    """Makes layers of as few bits as weights allow: 4, where that is the fewest and they fit, else 8."""

    def __init__(self, fewest: int) -> None:
        """fewest: bits, 8 or 4."""
        self._fewest = fewest
        self._room = Room(LargePages() if outruns_torch() else None)

    def layer(self, weight: Tensor, at_least: int = 4) -> QuantizedLinear:
        """The layer of a weight [O, I], without a bias. at_least: bits that it gets in any case, 4 or 8."""
        if isinstance(weight, RoundedWeights):
            return weight.layers[0]
        small = max(self._fewest, at_least) == 4 and Int4Linear.fits(weight)
        return (Int4Linear if small else Int8Linear).rounded(weight.detach(), None, self._room)

    def layers(self, weights: Tensor, transposed: bool) -> list[QuantizedLinear]:
        """Those of experts' weights [E, O, I], or [E, I, O] where they are transposed."""
        if isinstance(weights, RoundedWeights):
            return weights.layers
        return [self.layer(weight.mT if transposed else weight) for weight in weights.detach()]
