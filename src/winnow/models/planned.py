"""Layers with a plan of the compiled kernels."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from winnow.kernels.linear import LinearPlan, Weight
from winnow.kernels.norm import NormPlan, NormWeight


class Planned(nn.Module):
    """A layer with a plan of the compiled kernels, which lasts as long as its parameters lie where they do."""

    _plan: LinearPlan | NormPlan | None = None

    @abstractmethod
    def compiled_weight(self) -> Weight | NormWeight:
        """The parameters that the kernels compute with."""

    def plan_for(self, inputs: Tensor) -> LinearPlan | NormPlan | None:
        """The plan; None for inputs that are elsewhere, of another dtype, or followed: for gradients or a compiler."""
        if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch.is_autocast_enabled("cpu"):
            return None
        weight = self.compiled_weight()
        numbers, plan = weight.numbers, self._plan
        followed = torch.is_grad_enabled() and (inputs.requires_grad or numbers.requires_grad)
        if followed or type(inputs) is not Tensor or type(numbers) is not nn.Parameter or not inputs.is_cpu:
            plan = None
        elif plan is None or plan.place != weight.place():
            plan = weight.plan() if weight.fits() else None
        if plan is not self._plan:
            # Otherwise it would keep memory that parameters have left.
            self._plan = plan
        return plan if plan is not None and inputs.dtype is plan.dtype else None

    def parameter(self, name: str) -> Tensor:
        """One that the layer has; faster than as an attribute."""
        found = self._parameters[name]
        assert found is not None
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Its state for copies and files: without the plan, which is full of addresses."""
        return {name: each for name, each in self.__dict__.items() if name != "_plan"}
