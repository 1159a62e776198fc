"""Gated norms of models, as linear attention ends with, by the compiled kernel: which are replaced, and by what."""

from __future__ import annotations

import copy
from collections.abc import Callable
from inspect import signature
from typing import NamedTuple

import torch
from torch import Tensor, nn

from winnow.kernels import native
from winnow.kernels.norm import GatedNormPlan, NormWeight
from winnow.models.norms import settings_of
from winnow.models.planned import Planned, place_of
from winnow.models.replacing import StandIn, replace_alike

_NAME = "RMSNormGated"
_ARGUMENTS = ["self", "hidden_states", "gate"]
_EPSILON = "variance_epsilon"
_CLOSE = 4
"""The largest difference, in steps of the dtype: a gate is a quotient of exponentials."""


class GatedNormWeight(NamedTuple):
    """The weight of a norm whose outputs are gated."""

    norm: NormWeight

    def fits(self) -> bool:
        """True if the kernels can read it."""
        return self.norm.fits()

    def plan(self) -> GatedNormPlan:
        """Raises ValueError for a weight that does not fit."""
        return GatedNormPlan(self.norm)


class CompiledGatedNorm(Planned[GatedNormPlan], StandIn):
    """A gated norm by Winnow's kernel where nothing follows it, for gradients or a compiler; else as it was."""

    @staticmethod
    def fits(norm: nn.Module) -> bool:
        """True for a norm that may be w · x / √(mean(x²) + ε) · silu(z): by its parts alone."""
        if _NAME not in type(norm).__name__ or isinstance(norm, StandIn) or "forward" in vars(norm):
            return False
        if list(signature(type(norm).forward).parameters) != _ARGUMENTS:
            return False
        if [name for name, _ in norm.named_parameters()] != ["weight"] or [*norm.buffers(), *norm.children()]:
            return False
        weight, epsilon = norm.get_parameter("weight"), getattr(norm, _EPSILON, None)
        return type(weight) is nn.Parameter and isinstance(epsilon, float) and NormWeight(weight, epsilon).fits()

    def compiled_weight(self) -> GatedNormWeight:
        return GatedNormWeight(NormWeight(self.parameter("weight"), self.__dict__[_EPSILON]))

    def place(self) -> tuple[object, ...]:
        return *place_of(self._parameters["weight"]), self.__dict__[_EPSILON]

    def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:
        """hidden_states, gate [..., W] -> [..., W]"""
        plan = self.plan_for(hidden_states)
        if plan is None or not self._takes(gate, hidden_states):
            found: Tensor = self._replaced.forward(self, hidden_states, gate)
            return found
        return plan.run(hidden_states, gate)

    @staticmethod
    def _takes(gate: object, beside: Tensor) -> bool:
        if type(gate) is not Tensor or gate.dtype is not beside.dtype or gate.shape != beside.shape or not gate.is_cpu:
            return False
        return not (torch.is_grad_enabled() and gate.requires_grad)


def gate_norms_in_one_pass(model: nn.Module) -> None:
    """Has the gated norms of a model on the CPU be done by Winnow's kernel, in place.

    Parameters and their names stay, and so does what norms compute, the last bits aside. Norms that compute anything
    else, as those that are gated first, are left: one of each kind is tried before it is replaced.
    """
    if native.library() is None:
        return

    def by_kernel(norm: nn.Module) -> Callable[[nn.Module], nn.Module] | None:
        return CompiledGatedNorm if computes_the_same(norm) else None

    replace_alike(model, _kind_of, by_kernel)


def _kind_of(norm: nn.Module) -> tuple[object, ...] | None:
    return settings_of(norm) if CompiledGatedNorm.fits(norm) else None


@torch.no_grad()
def computes_the_same(norm: nn.Module) -> bool:
    """True if the kernel gives what a norm that `fits` gives, for rows of small, usual and large numbers.

    It is tried with a random weight: one of ones would not tell w from its square.
    """
    generator = torch.Generator().manual_seed(0)
    weight = norm.get_parameter("weight")
    width, dtype = len(weight), weight.dtype

    def drawn(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator, dtype=torch.float32, device="cpu").to(dtype)

    twin = copy.copy(norm)
    twin._parameters = {"weight": nn.Parameter(drawn(width))}
    for size in (1e-3, 1.0, 100.0):
        numbers, gates = size * drawn(4, width), drawn(4, width)
        try:
            expected = type(norm).forward(twin, numbers, gates)
        except (TypeError, ValueError, IndexError, RuntimeError, AttributeError):
            return False
        found = CompiledGatedNorm(twin)(numbers, gates)
        if expected.dtype != found.dtype or expected.shape != found.shape:
            return False
        if not torch.allclose(found.float(), expected.float(), rtol=_CLOSE * torch.finfo(dtype).eps, atol=1e-30):
            return False
    return True
