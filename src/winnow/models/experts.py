"""Experts that lie in one tensor: each multiplies the tokens that chose it by its weight where it lies."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from winnow.kernels.linear import Weight, multiplies_many, outruns_torch
from winnow.kernels.stack import StackPlan, layers_fit
from winnow.models.compiled import CompiledLinear, many_rows
from winnow.models.mixture import keeps_experts_in_one, mix, parameters_of
from winnow.models.recorded import is_followed
from winnow.models.routers import route_directly

IMPLEMENTATION = "winnow"
"""The name by which transformers knows `experts_forward`."""
_REPLACED = "grouped_mm"
"""The one that transformers chooses by itself, for whatever the kernels do not take."""


def read_experts_directly(model: PreTrainedModel) -> None:
    """Has the experts of a model on a CPU, and what chooses them, be multiplied by Winnow's kernels, in place.

    It is for few tokens, on processors where the kernels outrun torch's products (`read_weights_directly`), and for
    experts that transformers keeps in one tensor, where nobody chose an implementation. Weights that are stored
    transposed keep their shape, but move in memory, so that the weights of an output lie beside each other as the
    kernels read them.
    """
    route_directly(model)
    if not outruns_torch() or getattr(model.config, "_experts_implementation", None) != _REPLACED:
        return
    found = [module for module in model.modules() if keeps_experts_in_one(module)]
    if found:
        ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, experts_forward)
        model.set_experts_implementation(IMPLEMENTATION)
    for module in found:
        if module.is_transposed:
            lay_out_by_output(module)


def experts_forward(experts: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """hidden_states [T, W], of which each token has K experts [T, K] with their weights [T, K] -> [T, W].

    experts: a module that `transformers.integrations.moe.use_experts_implementation` describes. Inputs that gradients
    or a compiler follow, and those on other devices, are left to transformers' own function.
    """
    stacks = _stacks_of(experts, hidden_states)
    if stacks is None:
        found: Tensor = ALL_EXPERTS_FUNCTIONS[_REPLACED](experts, hidden_states, top_k_index, top_k_weights)
        return found
    return mix(experts, stacks.enter, stacks.leave, hidden_states, top_k_index, top_k_weights)


def lay_out_by_output(experts: Any) -> None:
    """Moves the transposed weights [E, I, O] of a module on a CPU, so that those of an output lie beside each other."""
    for weight, *_ in parameters_of(experts):
        if weight.is_cpu and type(weight) is nn.Parameter:
            weight.data = weight.data.mT.contiguous().mT


class _Stack:
    """The linear layers of all experts of one kind."""

    def __init__(self, parameters: Sequence[Tensor], transposed: bool) -> None:
        """parameters: the weight [E, O, I], or [E, I, O] where it is transposed, and a bias [E, O] if there is one."""
        weight, *biases = (each.detach() for each in parameters)
        self._weights = Weight(weight.mT if transposed else weight, biases[0] if biases else None)
        self._plan = StackPlan(self._weights) if layers_fit(self._weights) else None
        self.outputs = self._weights.numbers.shape[1]

    def one(self, expert: int, rows: Tensor) -> Tensor:
        plan = self.plan(rows, len(rows))
        if plan is not None:
            return plan.run(rows, torch.full((len(rows),), expert, device=rows.device))
        numbers, bias, _ = self._weights
        return many_rows(rows, numbers[expert], None if bias is None else bias[expert])

    def plan(self, rows: Tensor, most: int) -> StackPlan | None:
        serves = most <= CompiledLinear.few(rows.dtype) or multiplies_many(rows.dtype)
        return self._plan if serves else None


class _Stacks(NamedTuple):
    """The weights of a module of experts, as it describes itself."""

    place: tuple[object, ...]
    """Alike for parameters that are the same memory."""
    enter: _Stack
    leave: _Stack


_KNOWN: WeakKeyDictionary[nn.Module, _Stacks] = WeakKeyDictionary()
"""Apart from the modules, so that copies and files of these hold no addresses."""


def _stacks_of(experts: Any, inputs: Tensor) -> _Stacks | None:
    """None where the kernels are not for these experts, or these inputs."""
    sides = parameters_of(experts)
    parameters = list(chain(*sides))
    if not all(_is_read(each, inputs) for each in parameters) or _are_followed(experts, inputs):
        _KNOWN.pop(experts, None)
        return None
    place = tuple((each.data_ptr(), each.shape, each.stride(), each.dtype) for each in parameters)
    known = _KNOWN.get(experts)
    if known is None or known.place != place:
        enter, leave = (_Stack(side, experts.is_transposed) for side in sides)
        known = _KNOWN[experts] = _Stacks(place, enter, leave)
    return known


def _is_read(parameter: nn.Parameter | None, inputs: Tensor) -> bool:
    return type(parameter) is nn.Parameter and parameter.is_cpu and parameter.dtype is inputs.dtype


def _are_followed(experts: Any, inputs: Tensor) -> bool:
    if is_followed(inputs) or not inputs.is_cpu or experts._is_expert_parallel:
        return True
    return torch.is_grad_enabled() and any(each.requires_grad for each in experts.parameters())
