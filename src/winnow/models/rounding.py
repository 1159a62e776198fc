"""Layers of few bits, made of a model's weights: when the model is complete, or one by one as they are read."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Self

import torch
from torch import Tensor, nn

from winnow.kernels.linear import outruns_torch
from winnow.models.gguf_rows import FileRows
from winnow.models.int4 import Int4Linear
from winnow.models.int8 import Int8Linear
from winnow.models.large_pages import LargePages
from winnow.models.parts import parts_of
from winnow.models.quantized import QuantizedLinear
from winnow.models.quantized_stack import QuantizedStack
from winnow.models.room import Room


def kind_for(bits: int, shape: Sequence[int]) -> type[QuantizedLinear]:
    """The kind of layers that weights [..., O, I] get: of 4 bits, if no more are asked for and they fit, else of 8."""
    return Int4Linear if bits == 4 and Int4Linear.fits(shape) else Int8Linear


class RoundedWeights(nn.Parameter):
    """Weights that are rounded already: it has their shape in a module, and the memory of a single value."""

    rounded: QuantizedLinear | QuantizedStack
    """Without biases."""

    @classmethod
    def instead_of(cls, parameter: nn.Parameter, rounded: QuantizedLinear | QuantizedStack) -> Self:
        """It keeps what others noted on the parameter."""
        made = cls(torch.zeros((), dtype=parameter.dtype, device="cpu").expand(parameter.shape), requires_grad=False)
        vars(made).update(vars(parameter))
        made.rounded = rounded
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
            assert isinstance(weight.rounded, QuantizedLinear)
            return weight.rounded
        return self._kind(weight.shape, at_least).rounded(weight.detach(), self._room)

    def stack(self, weights: Tensor, transposed: bool) -> QuantizedStack:
        """The layers of experts' weights [E, O, I], or [E, I, O] where they are transposed, without biases."""
        if isinstance(weights, RoundedWeights):
            assert isinstance(weights.rounded, QuantizedStack)
            return weights.rounded
        weights = weights.detach().mT if transposed else weights.detach()
        kind = self._kind(weights.shape, at_least=4)
        stored = kind.room_for(weights.shape, weights.dtype, self._room)
        for expert, weight in enumerate(weights):
            kind.round_into([each[expert] for each in stored], weight, self._room)
        return QuantizedStack(kind, stored, None)

    def from_levels(self, rows: FileRows) -> QuantizedLinear | QuantizedStack:
        """The layer of weights [O, I] that `have_sixteen_levels`, or the layers of experts' [E, O, I], as they are.

        They have 4 bits, and no biases. Raises ModelError where torch packs them in an order that is not known.
        """
        *experts, outputs, inputs = rows.shape
        stored = Int4Linear.room_for(rows.shape, rows.dtype, self._room)
        for expert in range(prod(experts)):
            one = [each[expert] for each in stored] if experts else stored
            for part in parts_of(outputs, inputs):
                among_all = slice(expert * outputs + part.start, expert * outputs + part.stop)
                Int4Linear.write_levels(one, part, rows.levels(among_all))
        return QuantizedStack(Int4Linear, stored, None) if experts else Int4Linear(stored, None)

    def _kind(self, shape: Sequence[int], at_least: int) -> type[QuantizedLinear]:
        return kind_for(max(self._fewest, at_least), shape)
