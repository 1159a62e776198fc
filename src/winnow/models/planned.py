"""Layers with a plan of the compiled kernels."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from winnow.kernels.linear import LinearPlan
from winnow.kernels.norm import NormPlan
from winnow.models.recorded import is_recorded

Plan = TypeVar("Plan", LinearPlan, NormPlan)
AnyPlan = TypeVar("AnyPlan", covariant=True)


class Plannable(Protocol[AnyPlan]):
    """Parameters that the kernels compute with: `Weight`, `NormWeight`."""

    @property
    def numbers(self) -> Tensor:
        """The first of them, whose place is the layer's."""

    def fits(self) -> bool:
        """True if the kernels can read them."""

    def place(self) -> tuple[object, ...]:
        """Alike for parameters that are the same memory."""

    def plan(self) -> AnyPlan:
        """Raises ValueError for parameters that do not fit."""


class PlanHolder(nn.Module):
    """A module with a plan that is made when it is needed, and neither copied nor written to files."""

    def __getstate__(self) -> dict[str, Any]:
        """Its state for copies and files: without the plan, which is full of addresses."""
        return {name: each for name, each in self.__dict__.items() if name != "_plan"}


class Planned(PlanHolder, Generic[Plan]):
    """A layer with a plan of the compiled kernels, which lasts as long as its parameters lie where they do."""

    _plan: Plan | None = None

    @abstractmethod
    def compiled_weight(self) -> Plannable[Plan]:
        """The parameters that the kernels compute with."""

    def plan_for(self, inputs: Tensor) -> Plan | None:
        """The plan; None for inputs that are elsewhere, of another dtype, or followed: for gradients or a compiler.

        None also while something else is computed in place of a parameter, as by pruning or a parametrization.
        """
        if is_recorded():
            return None
        try:
            weight = self.compiled_weight()
        except KeyError:
            self._plan = None
            return None
        numbers, plan = weight.numbers, self._plan
        followed = torch.is_grad_enabled() and (inputs.requires_grad or self._wants_gradients())
        if followed or type(inputs) is not Tensor or type(numbers) is not nn.Parameter or not inputs.is_cpu:
            plan = None
        elif plan is None or plan.place != weight.place():
            plan = weight.plan() if weight.fits() else None
        if plan is not self._plan:
            # Otherwise it would keep memory that parameters have left.
            self._plan = plan
        return plan if plan is not None and inputs.dtype is plan.dtype else None

    def _wants_gradients(self) -> bool:
        return any(each is not None and each.requires_grad for each in self._parameters.values())

    def parameter(self, name: str) -> Tensor:
        """One that the layer has; faster than as an attribute. Raises KeyError where it is no parameter any more."""
        found = self._parameters[name]
        assert found is not None
        return found
