"""Routers of mixtures, which choose experts: their product by the compiled kernels for few tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from winnow.kernels.linear import LinearPlan, Weight, outruns_torch
from winnow.models.compiled import FEW
from winnow.models.planned import Planned, place_of
from winnow.models.recorded import is_recorded
from winnow.models.replacing import may_be_replaced, replace_layers

_NAMES = ("Router", "Gating")
"""Ends of the names of transformers' routers."""


class CompiledRouter(Planned[LinearPlan]):
    """A router of whose forward one product is the kernels': that with its weight. All else is as its class does it.

    A part of classes that are routers themselves, as transformers looks for these where somebody asks for their logits.
    """

    weight: nn.Parameter
    """[E, W]"""
    _replaced: type[nn.Module]

    def compiled_weight(self) -> Weight:
        """Its parameters as they are."""
        return Weight(self.parameter("weight"), self._parameters.get("bias"))

    def place(self) -> tuple[object, ...]:
        """That of its parameters."""
        bias = self._parameters.get("bias")
        return *place_of(self._parameters.get("weight")), None if bias is None else bias.data_ptr()

    def product(self, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
        """Inputs [..., W] -> logits [..., E]; None for another weight than the router's, and where torch multiplies."""
        if weight is not self._parameters.get("weight") or bias is not self._parameters.get("bias"):
            return None
        plan = self.plan_for(inputs)
        return None if plan is None else plan.run(inputs)

    def forward(self, hidden_states: Tensor) -> Any:
        """hidden_states [..., W] -> what the router of its class gives."""
        weight = self._parameters.get("weight")
        few = weight is not None and hidden_states.numel() <= FEW * weight.shape[-1]
        if not few or is_recorded():
            return super().forward(hidden_states)
        with _Multiplying(self):
            return super().forward(hidden_states)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Parts of a copy or a file: the class is made where it is read."""
        return _empty, (self._replaced,), self.__getstate__()


class _Multiplying(TorchFunctionMode):
    """Has a router's product be its own."""

    def __init__(self, router: CompiledRouter) -> None:
        super().__init__()
        self._router = router

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is linear:
            found = self._router.product(*args, **kwargs)
            if found is not None:
                return found
        return function(*args, **kwargs)


def route_directly(model: nn.Module) -> None:
    """Has the routers of a model on the CPU multiply few tokens by the kernels where those outrun torch's, in place.

    Parameters, their names and hooks stay, and so does what routers compute, the last bit of logits aside.
    """
    if outruns_torch():
        replace_layers(model, lambda _, layer: _successor(layer) if _is_router(layer) else None)


def _is_router(layer: nn.Module) -> bool:
    if isinstance(layer, CompiledRouter) or not type(layer).__name__.endswith(_NAMES) or not may_be_replaced(layer):
        return False
    weight = layer._parameters.get("weight")
    return type(weight) is nn.Parameter and weight.is_cpu and Weight(weight.detach()).fits()


def _successor(router: nn.Module) -> CompiledRouter:
    made = _empty(type(router))
    vars(made).update(vars(router))
    return made


def _empty(kind: Any) -> CompiledRouter:
    """A router without anything that one has."""
    made: Callable[..., CompiledRouter] = object.__new__
    return made(_compiled(kind))


@cache
def _compiled(kind: Any) -> type[CompiledRouter]:
    return type(kind.__name__, (CompiledRouter, kind), {"_replaced": kind, "__doc__": kind.__doc__})
