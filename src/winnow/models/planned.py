"""Layers with a plan of the compiled kernels."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from winnow.kernels.linear import LinearPlan
from winnow.kernels.norm import GatedNormPlan, NormPlan
from winnow.models.recorded import is_recorded

Plan = TypeVar("Plan", LinearPlan, NormPlan, GatedNormPlan)
AnyPlan = TypeVar("AnyPlan", covariant=True)


class Plannable(Protocol[AnyPlan]):
    """Parameters that the kernels compute with: `Weight`, `NormWeight`."""

    def fits(self) -> bool:
        """True if the kernels can read them."""

    def plan(self) -> AnyPlan:
        """Raises ValueError for parameters that do not fit."""


def place_of(numbers: Tensor | None) -> tuple[object, ...]:
    """The address of a parameter, and how it lies there. Raises KeyError for none, and for a tensor of a library."""
    if type(numbers) is not nn.Parameter:
        raise KeyError
    return numbers.data_ptr(), numbers.shape, numbers.stride(), numbers.dtype


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
        """The parameters that the kernels compute with. Raises KeyError where one is no parameter any more."""

    @abstractmethod
    def place(self) -> tuple[object, ...]:
        """Addresses of the parameters, and all else that a plan is made of: alike where the same plan serves.

        Every token asks for it. Raises KeyError as `compiled_weight`, and where the numbers are a tensor of a library.
        """

    def plan_for(self, inputs: Tensor) -> Plan | None:
        """The plan; None for inputs that are elsewhere, of another dtype, or followed: for gradients or a compiler.

        None also while something else is computed in place of a parameter, as by pruning or a parametrization.
        """
        if is_recorded():
            return None
        plan = self.current_plan()
        if plan is None or type(inputs) is not Tensor or not inputs.is_cpu or inputs.dtype is not plan.dtype:
            return None
        followed = torch.is_grad_enabled() and (inputs.requires_grad or self._wants_gradients())
        return None if followed else plan

    def current_plan(self) -> Plan | None:
        """The plan of the parameters as they are, whatever the inputs and whoever follows them."""
        plan = self._plan
        try:
            known = plan is not None and plan.place == self.place()
        except KeyError:
            known = False
        if not known:
            # Also None: a plan would keep memory that parameters have left.
            plan = self._plan = self._made()
        return plan

    def _made(self) -> Plan | None:
        try:
            weight, place = self.compiled_weight(), self.place()
        except KeyError:
            return None
        if not weight.fits():
            return None
        plan = weight.plan()
        plan.place = place
        return plan

    def _wants_gradients(self) -> bool:
        return any(each is not None and each.requires_grad for each in self._parameters.values())

    def parameter(self, name: str) -> Tensor:
        """One that the layer has; faster than as an attribute. Raises KeyError where it is no parameter any more."""
        found = self._parameters[name]
        assert found is not None
        return found


class PlannedLinear(Planned[LinearPlan]):
    """A linear layer that has a plan where Winnow's kernels multiply its inputs fastest."""

    @abstractmethod
    def fastest_plan(self, inputs: Tensor) -> LinearPlan | None:
        """The plan of inputs for which Winnow's kernels are the fastest way; None for others."""

    def plan_beside(self, other: PlannedLinear, plan: LinearPlan) -> LinearPlan | None:
        """The plan for as many rows as another layer has one for, which has seen to all that is not this layer's own.

        None also where the two are of different kinds or dtypes.
        """
        own = self.current_plan() if type(other) is type(self) else None
        if own is None or own.dtype is not plan.dtype or (torch.is_grad_enabled() and self._wants_gradients()):
            return None
        return self.trusted(own)

    def trusted(self, plan: LinearPlan) -> LinearPlan | None:
        """The plan; None where kernels read such a layer otherwise, or torch's are faster."""
        return plan
