"""Layers of few bits, made of a model's weights: when the model is complete, or one by one as they are read."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Self

import torch
from torch import Tensor, nn

from winnow.kernels.linear import outruns_torch
from winnow.models.gguf_rows import FileRows
from winnow.models.high_bits import HighBitsLinear
from winnow.models.int4 import Int4Linear
from winnow.models.int5 import Int5Linear
from winnow.models.int6 import Int6Linear
from winnow.models.int8 import Int8Linear
from winnow.models.large_pages import LargePages
from winnow.models.parts import parts_of
from winnow.models.quantized import QuantizedLinear, RoundedLinear
from winnow.models.quantized_stack import QuantizedStack
from winnow.models.room import Room

_OF_LEVELS: dict[int, type[Int4Linear | HighBitsLinear]] = {4: Int4Linear, 5: Int5Linear, 6: Int6Linear}
"""Layers that keep a file's levels, by their bits."""


def kind_for(bits: int, shape: Sequence[int]) -> type[RoundedLinear]:
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

    def keeps(self, rows: FileRows) -> bool:
        """True if a weight [..., O, I] of a file stays at its levels: if a layer has them, and no more bits than else.

        4 bits stay wherever the shape fits, and 5 and 6 where kernels read them and other weights get 8.
        """
        if rows.bits is None or rows.bits > self._fewest:
            return False
        return Int4Linear.fits(rows.shape) if rows.bits == 4 else HighBitsLinear.serves(rows.shape, rows.dtype)

    def from_levels(self, rows: FileRows) -> QuantizedLinear | QuantizedStack:
        """The layer of weights [O, I] which it `keeps`, or the layers of experts' [E, O, I], as they are.

        They have the bits of the file, and no biases. Raises ModelError where torch packs weights of 4 bits in an order
        that is not known.
        """
        assert rows.bits is not None
        kind = _OF_LEVELS[rows.bits]
        *experts, outputs, inputs = rows.shape
        stored = kind.room_for(rows.shape, rows.dtype, self._room)
        for expert in range(prod(experts)):
            one = [each[expert] for each in stored] if experts else stored
            for part in parts_of(outputs, inputs):
                among_all = slice(expert * outputs + part.start, expert * outputs + part.stop)
                kind.write_levels(one, part, rows.levels(among_all))
        return QuantizedStack(kind, stored, None) if experts else kind(stored, None)

    def _kind(self, shape: Sequence[int], at_least: int) -> type[RoundedLinear]:
        return kind_for(max(self._fewest, at_least), shape)
