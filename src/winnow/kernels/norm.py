"""Norms by the root of the mean of squares (RMSNorm) with the compiled kernels, in one pass."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from winnow.kernels import native
from winnow.kernels.native_args import DTYPES, NormArgs
from winnow.kernels.recording import CallRecording
from winnow.kernels.row_plan import RowPlan


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


class NormPlan(RowPlan):
    """A norm through the compiled library: (w + offset) · x / √(mean(x²) + ε), in fp32, or rounded between."""

    def __init__(self, weight: NormWeight) -> None:
        """Raises ValueError for a weight that does not fit."""
        numbers, epsilon, form = weight
        if not weight.fits():
            raise ValueError(
                f"the kernels read no weight {list(numbers.shape)} of {numbers.dtype} on {numbers.device} of a norm"
            )
        width = len(numbers)
        arguments = NormArgs(width, numbers.data_ptr(), epsilon, form.offset, form.rounds_first, DTYPES[numbers.dtype])
        super().__init__(
            native.loaded_library().winnow_normalize, arguments, [numbers], numbers.dtype, inputs=width, outputs=width
        )

    def _note(self, recording: CallRecording, rows: int, *memory: Tensor) -> None:
        """Has a recorder note a call, and with it the sum before it, as of a residual: one call does both."""
        inputs, outputs = memory
        summed = recording.taken_sum(inputs)
        if summed is None:
            super()._note(recording, rows, *memory)
        else:
            self._note_call(recording, "winnow_normalize_sums", rows, *summed, inputs, outputs)
