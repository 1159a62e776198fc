"""Two linear layers of few rows, one of which gates the other, with the compiled kernels in one call."""

from __future__ import annotations

from winnow.kernels import native
from winnow.kernels.gate import SILU, Gate
from winnow.kernels.linear import LinearPlan
from winnow.kernels.native_args import GatedLayers
from winnow.kernels.row_plan import RowPlan


class GatedPlan(RowPlan):
    """Inputs [..., I] -> outputs [..., O] of one layer, gated by those of another: silu(gate) · up, or another `Gate`.

    Both layers' outputs are rounded to the dtype, and so are activations, as by layers of their own.
    """

    def __init__(self, gate: LinearPlan, up: LinearPlan, by: Gate = SILU) -> None:
        """Raises ValueError for layers whose inputs, outputs or dtype differ, and for a gate that there is not."""
        of_gate, of_up = ((plan.inputs, plan.outputs, plan.dtype) for plan in (gate, up))
        if of_gate != of_up:
            raise ValueError(f"a gate of {of_gate} does not fit a layer of {of_up} inputs, outputs and dtype")
        self.gate, self.up = gate, up
        layers = GatedLayers(gate.layer, up.layer, by.arguments())
        super().__init__(native.loaded_library().winnow_gated, layers, (), up.dtype, up.inputs, up.outputs)

    def refusal(self) -> str:
        """Words where one of the layers has no kernel."""
        return f"no kernel here multiplies {self.dtype} by weights of {self.gate.bits} and {self.up.bits} bits"
