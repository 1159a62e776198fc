"""Experts of a mixture for few tokens with the compiled kernels, in one call."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.kernels import native
from winnow.kernels.gate import SILU, Gate
from winnow.kernels.native_args import BAD_LAYER, LINEAR_OUTPUTS, MixtureArgs
from winnow.kernels.row_plan import RowFunction
from winnow.kernels.stack import StackPlan


class MixturePlan(RowFunction):
    """Tokens [T, W] -> Σ weight · leave(gated) over the experts of each, [T, W]: gated by silu, or another `Gate`.

    What enters an expert are a gate's outputs and those that it gates. They, activations, and what an expert gives are
    rounded to the dtype, as by layers of their own; the sum is in fp32, and rounded once.
    """

    def __init__(
        self, enter: StackPlan, leave: StackPlan, chosen: int, gate: Gate = SILU, interleaved: bool = False
    ) -> None:
        """chosen: experts of a token; interleaved: see `fit_together`.

        Raises ValueError for layers that do not `fit_together`, and for a gate that there is not.
        """
        if not fit_together(enter, leave, interleaved):
            raise ValueError(f"layers {_sizes(enter)} and {_sizes(leave)} are not those that enter and leave experts")
        self.enter, self.leave, self.chosen = enter, leave, chosen
        mixture = MixtureArgs(enter.stack, leave.stack, chosen, gate.arguments(), interleaved)
        super().__init__(native.loaded_library().winnow_mix, mixture, (), enter.dtype, enter.inputs, leave.outputs)

    def run(self, inputs: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """Inputs [T, W] in the plan's dtype, their experts, int64 [T, K], and weights, float32 [T, K] -> [T, W].

        Raises ValueError for what does not fit, and where there is no such kernel; IndexError for an expert that there
        is not; MemoryError without memory.
        """
        if inputs.ndim != 2 or inputs.dtype is not self.dtype or not inputs.is_cpu:
            raise ValueError(f"inputs {list(inputs.shape)} of {inputs.dtype} do not fit experts of {self.dtype}")
        shape, like, tokens = self._last
        if inputs.shape != shape:
            like, tokens = self._accept(inputs)
        for each, dtype in ((experts, torch.int64), (weights, torch.float32)):
            if each.shape != (tokens, self.chosen) or each.dtype != dtype or not each.is_cpu:
                raise ValueError(
                    f"{list(each.shape)} of {each.dtype} do not fit {self.chosen} experts of {tokens} tokens"
                )
        given = (experts.contiguous(), weights.contiguous(), inputs.contiguous())
        outputs = torch.empty_like(like)
        self._call(tokens, *given, outputs)
        return outputs

    def refusal(self) -> str:
        """Words where there is no kernel for so few bits."""
        return f"no kernel here multiplies {self.dtype} by weights of {self.enter.bits} and {self.leave.bits} bits"

    def error_of(self, rows: int, status: int) -> Exception:
        """The error that a status of the function tells, for so many tokens."""
        return self.enter.error_of(rows, status) if status == BAD_LAYER else super().error_of(rows, status)


def fit_together(enter: StackPlan, leave: StackPlan, interleaved: bool = False) -> bool:
    """True for the layers of as many experts, of one dtype, of which the first give two numbers for one that leaves.

    interleaved: True where outputs of the gate and those that it gates take turns, and are not halves.
    """
    if (enter.layers, enter.dtype, enter.outputs) != (leave.layers, leave.dtype, 2 * leave.inputs):
        return False
    # Halves of a weight of 4 to 6 bits are blocks of outputs.
    return enter.inputs == leave.outputs and (interleaved or enter.bits >= 8 or leave.inputs % LINEAR_OUTPUTS == 0)


def _sizes(plan: StackPlan) -> str:
    return f"[{plan.layers}, {plan.outputs}, {plan.inputs}] of {plan.dtype}"
