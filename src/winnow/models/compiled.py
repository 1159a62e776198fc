"""Linear layers by the compiled kernels, for processors where torch's own read a weight slower than memory gives it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from winnow.kernels import native
from winnow.kernels.linear import LinearPlan, Weight, multiplies_many
from winnow.kernels.native_args import DTYPES
from winnow.kernels.onednn import has_onednn, linear_by_onednn
from winnow.models.carrier import Carrier
from winnow.models.direct import DirectLinear
from winnow.models.dtypes import torch_multiplies
from winnow.models.planned import PlannedLinear, place_of
from winnow.models.widened import linear_in_float32

FEW = 32
"""Rows of inputs up to which torch's own products take longer."""


class CompiledLinear(PlannedLinear, DirectLinear):
    """A linear layer whose weight Winnow's kernels multiply by where few rows of inputs need no gradients.

    So they do for many rows where they are made for these. Elsewhere many are torch's to multiply: on AMD's processors
    with AVX-512 those in float32 by oneDNN, and where torch has no library for products of 16 bits, those in float32.
    """

    @staticmethod
    def few(dtype: torch.dtype) -> int:
        """Rows that kernels multiply; 0 for a dtype that they do not know."""
        return FEW if dtype in DTYPES else 0

    def compiled_weight(self) -> Weight:
        """Its parameters as they are."""
        return Weight(self.parameter("weight"), self._parameters["bias"])

    def place(self) -> tuple[object, ...]:
        """That of its parameters."""
        bias = self._parameters["bias"]
        return *place_of(self._parameters["weight"]), None if bias is None else bias.data_ptr()

    def fastest_plan(self, inputs: Tensor) -> LinearPlan | None:
        """The plan of inputs that Winnow's kernels multiply; None for others."""
        return self.plan_for(inputs) if self._is_fastest(inputs) else None

    def _is_fastest(self, inputs: Tensor) -> bool:
        return inputs.numel() <= self.few(inputs.dtype) * self.in_features or multiplies_many(inputs.dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        """inputs [..., I] -> [..., O]"""
        plan = self.plan_for(inputs)
        if plan is None:
            if isinstance(inputs, Carrier):
                return inputs.through(self.forward, self.out_features)
            return nn.Linear.forward(self, inputs)
        if self._is_fastest(inputs):
            return plan.run(inputs)
        return many_rows(inputs, self.weight, self.bias)


def many_rows(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """inputs [..., I], weight [O, I], bias [O] -> [..., O], by the fastest library here."""
    if not torch_multiplies(inputs.dtype):
        return linear_in_float32(inputs, weight, bias)
    if inputs.dtype == torch.float32 and native.is_zen() and has_onednn():
        return linear_by_onednn(inputs, weight, bias)
    return linear(inputs, weight, bias)
