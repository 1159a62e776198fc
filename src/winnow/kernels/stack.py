"""Linear layers that lie behind each other with the compiled kernels: those of a mixture's experts."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.kernels import native
from winnow.kernels.linear import LinearPlan, Weight
from winnow.kernels.native_args import BAD_LAYER, LinearStack
from winnow.kernels.row_plan import RowFunction


class StackPlan(RowFunction):
    """Linear layers of one shape, of which every row of inputs meets one, through the compiled library.

    It takes the numbers of layers from memory, so that other numbers there are what a recorded call takes next.
    Products are those of `LinearPlan`.
    """

    def __init__(self, weights: Weight) -> None:
        """weights: those of all layers, each tensor with a dimension more, [E, ...].

        Raises ValueError for weights that do not fit.
        """
        if not layers_fit(weights):
            raise ValueError(f"weights {list(weights.numbers.shape)} are no layers that the kernels read")
        first = LinearPlan(_layer(weights, 0))
        self.layers, self.bits = len(weights.numbers), first.bits
        apart = (_bytes_apart(each) for each in (weights.numbers, weights.scales, weights.bias))
        self.stack = LinearStack(first.layer, self.layers, *apart)
        super().__init__(
            native.loaded_library().winnow_linear_of_stack,
            self.stack,
            [each for each in weights if each is not None],
            first.dtype,
            first.inputs,
            first.outputs,
        )

    def run(self, inputs: Tensor, layers: Tensor) -> Tensor:
        """Inputs [S, I] in the plan's dtype, and the number of a layer for each, int64 [S] -> outputs [S, O].

        Rows beside each other that are for the same layer read its weight once.

        Raises ValueError for inputs and numbers that do not fit, and where there is no such kernel; IndexError for the
        number of a layer that there is not; MemoryError without memory.
        """
        if inputs.ndim != 2 or inputs.dtype is not self.dtype or not inputs.is_cpu:
            raise ValueError(
                f"inputs {list(inputs.shape)} of {inputs.dtype} do not fit layers of {self.dtype} on a CPU"
            )
        shape, like, rows = self._last
        if inputs.shape != shape:
            like, rows = self._accept(inputs)
        if layers.shape != (rows,) or layers.dtype != torch.int64 or not layers.is_cpu:
            raise ValueError(f"numbers {list(layers.shape)} of {layers.dtype} do not name a layer for {rows} rows")
        inputs, layers, outputs = inputs.contiguous(), layers.contiguous(), torch.empty_like(like)
        self._call(rows, layers, inputs, outputs)
        return outputs

    def refusal(self) -> str:
        """Words where there is no kernel for so few bits."""
        return f"no kernel here multiplies {self.dtype} by weights of {self.bits} bits"

    def error_of(self, rows: int, status: int) -> Exception:
        """The error that a status of the function tells, for so many rows of inputs."""
        if status == BAD_LAYER:
            return IndexError(f"a row is for a layer that there is not: there are {self.layers}")
        return super().error_of(rows, status)


def layers_fit(weights: Weight) -> bool:
    """True for weights [E, ...] of one layer or more, which the kernels can read."""
    count = len(weights.numbers) if weights.numbers.ndim else 0
    held = [each for each in weights if each is not None]
    return count > 0 and all(each.ndim and len(each) == count for each in held) and _layer(weights, 0).fits()


def _layer(weights: Weight, layer: int) -> Weight:
    numbers, *others = weights
    return Weight(numbers[layer], *(None if each is None else each[layer] for each in others))


def _bytes_apart(parameter: Tensor | None) -> int:
    return 0 if parameter is None else parameter.stride(0) * parameter.element_size()
