"""Norms by the root of the mean of squares (RMSNorm) with the compiled kernels, in one pass."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from winnow.kernels import native
from winnow.kernels.native_args import DTYPES, NormArgs
from winnow.kernels.recording import CallRecording
from winnow.kernels.row_plan import RowFunction, RowPlan


class NormForm(NamedTuple):
    """The way in which a norm meets its weight."""

    rounds_first: bool = True
    """True where x / √(...) is rounded to the dtype before, as by Llama's; else it is rounded once, at the end."""
    offset: float = 0.0
    """Added to the weight: 1 by Gemma's. Only where it is rounded once."""


class NormWeight(NamedTuple):
    """The weight of a norm, what is added to the mean of squares, and how they meet."""

    numbers: Tensor
    """[W] in the dtype of the inputs."""
    epsilon: float
    form: NormForm = NormForm()

    def fits(self) -> bool:
        """True if the kernels can read it."""
        numbers = self.numbers
        shaped = numbers.ndim == 1 and numbers.numel() > 0 and numbers.dtype in DTYPES
        known = not (self.form.rounds_first and self.form.offset)
        return shaped and known and numbers.is_cpu and numbers.is_contiguous()

    def plan(self) -> NormPlan:
        """Raises ValueError for a weight that does not fit."""
        return NormPlan(self)


def _arguments(weight: NormWeight) -> NormArgs:
    """Raises ValueError for a weight that does not fit."""
    numbers, epsilon, form = weight
    if not weight.fits():
        raise ValueError(
            f"the kernels read no weight {list(numbers.shape)} of {numbers.dtype} on {numbers.device} of a norm"
        )
    return NormArgs(len(numbers), numbers.data_ptr(), epsilon, form.offset, form.rounds_first, DTYPES[numbers.dtype])


class NormPlan(RowPlan):
    """A norm through the compiled library: (w + offset) · x / √(mean(x²) + ε), in fp32, or rounded between."""

    def __init__(self, weight: NormWeight) -> None:
        """Raises ValueError for a weight that does not fit."""
        numbers, width = weight.numbers, len(weight.numbers)
        function = native.loaded_library().winnow_normalize
        super().__init__(function, _arguments(weight), [numbers], numbers.dtype, inputs=width, outputs=width)

    def _note(self, recording: CallRecording, rows: int, *memory: Tensor) -> None:
        """Has a recorder note a call, and with it the sum before it, as of a residual: one call does both."""
        inputs, outputs = memory
        summed = recording.taken_sum(inputs)
        if summed is None:
            super()._note(recording, rows, *memory)
        else:
            self._note_call(recording, "winnow_normalize_sums", rows, *summed, inputs, outputs)


class GatedNormPlan(RowFunction):
    """A norm of which every number is gated: silu(z) times what the norm gives, in fp32."""

    def __init__(self, weight: NormWeight) -> None:
        """Raises ValueError for a weight that does not fit."""
        numbers, width = weight.numbers, len(weight.numbers)
        function = native.loaded_library().winnow_normalize_gated
        super().__init__(function, _arguments(weight), [numbers], numbers.dtype, inputs=width, outputs=width)

    def run(self, inputs: Tensor, gates: Tensor) -> Tensor:
        """Inputs and gates [..., W] -> outputs [..., W], all in the plan's dtype.

        Raises ValueError for inputs or gates that do not fit.
        """
        shape, like, rows = self._last
        if inputs.shape != shape:
            like, rows = self._accept(inputs)
        if inputs.dtype is not self.dtype or gates.dtype is not self.dtype or not (inputs.is_cpu and gates.is_cpu):
            raise ValueError(f"inputs of {inputs.dtype} and gates of {gates.dtype} do not fit a norm of {self.dtype}")
        if gates.shape != inputs.shape:
            raise ValueError(f"gates {list(gates.shape)} do not fit inputs {list(inputs.shape)}")
        inputs, gates, outputs = inputs.contiguous(), gates.contiguous(), torch.empty_like(like)
        self._call(rows, inputs, gates, outputs)
        return outputs
