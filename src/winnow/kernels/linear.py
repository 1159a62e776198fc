"""Linear layers with the compiled kernels, which read the weight where it lies."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.kernels import native
from winnow.kernels.formats.entries import GROUP
from winnow.kernels.native_args import DTYPES, LINEAR_OUTPUTS, LinearLayer, address
from winnow.kernels.recording import this_thread
from winnow.kernels.row_plan import RowPlan

FINE_GROUP = GROUP // 2
"""Inputs that share a scale in a weight of 6 bits."""


def outruns_torch() -> bool:
    """True on processors where a linear layer takes less time than torch's.

    These are all with AVX2 or AVX-512 (docs/models.md): torch reads a weight at half of what memory gives or less, lays
    it out anew for every product, or multiplies numbers of 16 bits one by one.
    """
    return native.library() is not None and native.isa() != "portable"


def multiplies_several() -> bool:
    """True on processors where a few rows take little longer than one, whose products wait for the weight.

    With AVX2 alone they take as long as their products (docs/results/candidate_passes-amd-avx2.md).
    """
    return native.library() is not None and native.isa() not in ("avx2", "portable")


def multiplies_many(dtype: torch.dtype) -> bool:
    """True where many rows of a dtype, too, take less time than torch's (docs/kernels.md).

    In bfloat16, on all processors with AVX2 or AVX-512.
    """
    library = native.library()
    return library is not None and dtype in DTYPES and bool(library.winnow_multiplies_many(DTYPES[dtype]))


def outputs_together(dtype: torch.dtype) -> int:
    """Outputs that lie beside each other in weights of 4 to 6 bits as kernels read them; 0 where they read none.

    dtype: of the inputs.
    """
    library = native.library()
    return 0 if library is None or dtype not in DTYPES else int(library.winnow_nibble_outputs(DTYPES[dtype]))


class Weight(NamedTuple):
    """The weight of a linear layer, and its bias: in few bits that of a `QuantizedLinear`."""

    numbers: Tensor
    """[O, I] in the dtype of the inputs, or int8; or uint8 [O, I · bits / 8] of 4, 5 or 6 bits, `outputs_together`."""
    bias: Tensor | None = None
    """[O]"""
    scales: Tensor | None = None
    """[O] of int8; [I / 32, O, 2] of 4 and 5 bits, scale and middle; [I / 16, O] of 6 bits."""

    @property
    def bits(self) -> int:
        """16 for a weight in the dtype of the inputs. Scales tell 6 bits, and 5 where the numbers take as much."""
        if self.numbers.dtype != torch.uint8:
            return 8 if self.numbers.dtype == torch.int8 else 16
        if self.scales is not None and self.scales.ndim == 2:
            return 6
        five = self.scales is not None and 8 * self.numbers.shape[-1] == 5 * GROUP * len(self.scales)
        return 5 if five else 4

    def fits(self) -> bool:
        """True if the kernels can read it: tensors that fit together, each in one piece on the CPU."""
        numbers, bias, scales = self
        if numbers.ndim != 2:
            return False
        outputs, inputs = self.sizes
        others = [each for each in (bias, scales) if each is not None]
        fits = inputs > 0 and self.dtype in DTYPES
        fits = fits and all(each.dtype == self.dtype for each in others)
        fits = fits and (None if scales is None else scales.shape) == self._scales_shape()
        fits = fits and (bias is None or bias.shape == (outputs,))
        if self.bits < 8:
            fits = fits and inputs % GROUP == 0 and outputs % LINEAR_OUTPUTS == 0
        return fits and all(each.is_cpu and each.is_contiguous() for each in (numbers, *others))

    @property
    def sizes(self) -> tuple[int, int]:
        """Outputs and inputs."""
        outputs, columns = self.numbers.shape
        return outputs, columns * 8 // self.bits if self.bits < 8 else columns

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of inputs and outputs."""
        return self.numbers.dtype if self.scales is None else self.scales.dtype

    def _scales_shape(self) -> tuple[int, ...] | None:
        outputs, inputs = self.sizes
        if self.bits > 6:
            return (outputs,) if self.bits == 8 else None
        return (inputs // FINE_GROUP, outputs) if self.bits == 6 else (inputs // GROUP, outputs, 2)

    def plan(self) -> LinearPlan:
        """Raises ValueError for a weight that does not fit."""
        return LinearPlan(self)


class LinearPlan(RowPlan):
    """A linear layer through the compiled library.

    Products are summed up in fp32 and rounded once. Numbers in bfloat16 below 2⁻¹²⁶ may be taken for zero. Where it
    `multiplies_many`, more than 32 rows of inputs, and the weight, become whole numbers: inputs keep 14 bits of the
    largest of 64 beside each other, and the weight 13. On AMD's processors with AVX-512 BF16, only inputs do that meet
    a weight of few bits, and 127 steps are the largest. With AMX they stay as they are, and a weight of 4 to 6 bits is
    rounded to bfloat16.
    """

    trusted_on: str | None = None
    """The instruction set for which the plan's layer is known to lie as kernels read it, once it asked."""

    def __init__(self, weight: Weight) -> None:
        """Raises ValueError for a weight that does not fit."""
        if not weight.fits():
            raise ValueError(
                f"a weight {list(weight.numbers.shape)} of {weight.numbers.dtype} does not fit its scales and bias, "
                "or lies where the kernels do not read it"
            )
        self.bits = weight.bits
        outputs, inputs = weight.sizes
        numbers, bias, scales = map(address, weight)
        self.layer = LinearLayer(inputs, outputs, numbers, scales, bias, self.bits, DTYPES[weight.dtype])
        super().__init__(
            native.loaded_library().winnow_linear,
            self.layer,
            [each for each in weight if each is not None],
            weight.dtype,
            inputs,
            outputs,
        )

    def written_out(self, part: slice) -> Tensor | None:
        """[o, I] some outputs of a weight of 4 bits, in bfloat16; None where there is no kernel that writes them.

        part: of the outputs, from a multiple of 64 to another. Raises ValueError for one that is not.
        """
        first, last, step = part.indices(self.outputs)
        if first % LINEAR_OUTPUTS or last % LINEAR_OUTPUTS or last < first or step != 1:
            raise ValueError(f"outputs {first} to {last} cut a block of {LINEAR_OUTPUTS} of a weight of 4 bits")
        numbers = torch.empty(self.inputs, last - first, dtype=self.dtype, device="cpu")
        write, place = native.loaded_library().winnow_write_out, numbers.data_ptr()
        if write(self._reference, first, last, place, torch.get_num_threads()):
            return None
        recording = this_thread.recording
        if recording is not None:
            again = partial(write, self._reference, first, last, place, recording.threads)
            recording.note(again, partial(self.error_of, last - first), self, numbers)
        return numbers.mT

    def refusal(self) -> str:
        """Words where there is no kernel for so few bits."""
        return f"no kernel here multiplies {self.dtype} by a weight of {self.bits} bits"
