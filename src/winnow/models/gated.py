"""Gated MLPs whose gate is one call of the compiled kernels, where torch takes four."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from winnow.kernels.gate import Gate
from winnow.kernels.gated import GatedPlan
from winnow.kernels.linear import outruns_torch
from winnow.models.compiled import CompiledLinear
from winnow.models.gates import gate_of
from winnow.models.matrices import dtype_of
from winnow.models.mlps import PiecewiseMLP, are_few
from winnow.models.planned import PlanHolder, PlannedLinear
from winnow.models.quantized import QuantizedLinear
from winnow.models.replacing import is_watched, replace_alike

_GATE, _UP, _DOWN, _ACTIVATION = "gate_proj", "up_proj", "down_proj", "act_fn"


class GatedMLP(PlanHolder, PiecewiseMLP):
    """An MLP down(act(gate(x)) · up(x)) that does what is before `down` in one call where kernels are the fastest."""

    _plan: GatedPlan | None = None
    _tried: nn.Module

    def __init__(self, mlp: nn.Module, by: Gate) -> None:
        """mlp: one that `fits`; by: see `gate_of_mlp`."""
        super().__init__(mlp)
        self._by = by
        # Not as a part, of which the activation is one already.
        self.__dict__["_tried"] = mlp.get_submodule(_ACTIVATION)

    @staticmethod
    def fits(mlp: nn.Module) -> bool:
        """True for an MLP that has the parts of such a one, and kernels for them."""
        if not isinstance(mlp, PiecewiseMLP) or isinstance(mlp, GatedMLP) or any(map(is_watched, mlp.modules())):
            return False
        parts = dict(mlp.named_children())
        if set(parts) != {_GATE, _UP, _DOWN, _ACTIVATION}:
            return False
        return all(isinstance(parts[name], PlannedLinear) for name in (_GATE, _UP))

    def forward(self, hidden_states: Tensor) -> Tensor:
        """hidden_states [..., T, W] -> [..., T, W]"""
        return self.at_once(hidden_states) if are_few(hidden_states) else super().forward(hidden_states)

    def at_once(self, hidden_states: Tensor) -> Tensor:
        """hidden_states [..., T, W] -> [..., T, W], of all tokens together."""
        plan = self._plan_for(hidden_states)
        if plan is None:
            return self.as_before(hidden_states)
        gated, parts = plan.run(hidden_states), self._modules
        gate, down = parts[_GATE], parts[_DOWN]
        if isinstance(gate, PlannedLinear) and isinstance(down, PlannedLinear) and not is_watched(down):
            after = down.plan_beside(gate, plan.gate)
            if after is not None:
                return after.run(gated)
        found: Tensor = down(gated)  # type: ignore[misc]
        return found

    def _plan_for(self, hidden_states: Tensor) -> GatedPlan | None:
        """None where one of the layers would not be done by the kernels, or a part is watched."""
        parts = self._modules
        gate, up, activation = parts[_GATE], parts[_UP], parts[_ACTIVATION]
        if not (isinstance(gate, PlannedLinear) and isinstance(up, PlannedLinear)) or activation is not self._tried:
            return None  # somebody put another layer there
        if is_watched(gate) or is_watched(up) or is_watched(activation):
            return None
        first = gate.fastest_plan(hidden_states)
        if first is None:
            return None
        second = up.plan_beside(gate, first) or up.fastest_plan(hidden_states)
        if second is None:
            return None
        if self._plan is None or self._plan.gate is not first or self._plan.up is not second:
            self._plan = GatedPlan(first, second, self._by)
        return self._plan


def gate_in_one_pass(model: nn.Module) -> None:
    """Has the gates of a model's MLPs be done by Winnow's kernels where they are the fastest, in place.

    It is for MLPs that `feed_in_pieces` found, of a model whose linear layers are Winnow's, on processors where those
    outrun torch's. MLPs that compute anything else stay as they are: one of each kind is tried before it is replaced.
    So do those with hooks, which would see the trial.
    """
    if not outruns_torch():
        return

    def by_kernel(mlp: nn.Module) -> Callable[[nn.Module], GatedMLP] | None:
        gate = gate_of_mlp(mlp)
        return None if gate is None else partial(GatedMLP, by=gate)

    replace_alike(model, _kind_of, by_kernel)


def _kind_of(mlp: nn.Module) -> tuple[object, ...] | None:
    """The same for MLPs that tell the same of their parts; None for what does not fit."""
    return (mlp._replaced, repr(mlp)) if GatedMLP.fits(mlp) else None


def gate_of_mlp(mlp: nn.Module) -> Gate | None:
    """The gate of an MLP that `fits` and computes what its parts tell; None for others, and for one of no kernel."""
    layer, activation = mlp.get_submodule(_GATE), mlp.get_submodule(_ACTIVATION)
    assert isinstance(layer, CompiledLinear | QuantizedLinear)
    gate = gate_of(lambda gates, ups: activation(gates) * ups, layer.out_features, dtype_of(layer))
    return gate if gate is not None and computes_the_same(mlp, gate) else None


@torch.no_grad()
def computes_the_same(mlp: nn.Module, gate: Gate) -> bool:
    """True if an MLP that `fits` computes what its parts tell, with a gate, for a token of random numbers."""
    layer = mlp.get_submodule(_GATE)
    assert isinstance(layer, CompiledLinear | QuantizedLinear)
    draw = torch.Generator().manual_seed(0)
    shape, dtype = (1, 1, layer.in_features), dtype_of(layer)
    numbers = torch.randn(shape, generator=draw, dtype=torch.float32, device="cpu").to(dtype)
    made = GatedMLP(mlp, gate)
    if made._plan_for(numbers) is None:
        return False
    expected, found = mlp(numbers), made(numbers)
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return False
    return torch.allclose(found.float(), expected.float(), rtol=0, atol=0.02 * float(expected.abs().max()))
