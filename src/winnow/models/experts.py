"""Experts that lie in one tensor: each multiplies the tokens that chose it by its weight where it lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from winnow.kernels.linear import LinearPlan, Weight, outruns_torch
from winnow.models.compiled import CompiledLinear, many_rows
from winnow.models.recorded import is_followed

IMPLEMENTATION = "winnow"
"""The name by which transformers knows `experts_forward`."""
_REPLACED = "grouped_mm"
"""The one that transformers chooses by itself, for whatever the kernels do not take."""


def read_experts_directly(model: PreTrainedModel) -> None:
    """Has the experts of a model on a CPU be multiplied by Winnow's kernels for few tokens, in place.

    It is for experts that transformers keeps in one tensor, where nobody chose an implementation, on processors where
    the kernels outrun torch's products (`read_weights_directly`).
    """
    if not outruns_torch() or getattr(model.config, "_experts_implementation", None) != _REPLACED:
        return
    if any(hasattr(module, "is_concatenated") for module in model.modules()):
        ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, experts_forward)
        model.set_experts_implementation(IMPLEMENTATION)


def experts_forward(experts: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """hidden_states [T, W], of which each token has K experts [T, K] with their weights [T, K] -> [T, W].

    experts: a module that `transformers.integrations.moe.use_experts_implementation` describes. Inputs that gradients
    or a compiler follow, and those on other devices, are left to transformers' own function.
    """
    stacks = _stacks_of(experts, hidden_states)
    if stacks is None:
        found: Tensor = ALL_EXPERTS_FUNCTIONS[_REPLACED](experts, hidden_states, top_k_index, top_k_weights)
        return found
    tokens, chosen = top_k_index.shape
    ids, order = top_k_index.reshape(-1).sort()
    used, counts = (each.tolist() for each in ids.unique_consecutive(return_counts=True))
    inner = stacks.enter.multiply(hidden_states[order // chosen], used, counts)
    inner = experts._apply_gate(inner) if experts.has_gate else experts.act_fn(inner)
    outputs = stacks.leave.multiply(inner, used, counts)
    if getattr(experts, "has_post_expert_norm", False):
        outputs = experts.post_expert_norm(outputs)
    weighted = outputs * top_k_weights.reshape(-1)[order, None]
    in_order = torch.empty_like(weighted)
    in_order[order] = weighted
    return in_order.view(tokens, chosen, weighted.shape[-1]).sum(1).to(hidden_states.dtype)


class _Stack:
    """The linear layers of all experts of one kind, whose plans are made when they are needed."""

    def __init__(self, parameters: Sequence[Tensor], transposed: bool) -> None:
        """parameters: the weight [E, O, I], or [E, I, O] where it is transposed, and a bias [E, O] if there is one."""
        weight, *biases = (each.detach() for each in parameters)
        self._weights = weight.mT if transposed else weight
        self._biases = biases[0] if biases else None
        self._plans: dict[int, LinearPlan | None] = {}

    def multiply(self, rows: Tensor, experts: list[int], counts: list[int]) -> Tensor:
        """rows [S, I], those of an expert together: so many for each expert -> [S, O]"""
        outputs = rows.new_empty(len(rows), self._weights.shape[1])
        for expert, inputs, into in zip(experts, rows.split(counts), outputs.split(counts), strict=True):
            into.copy_(self._of_one(expert, inputs))
        return outputs

    def _of_one(self, expert: int, inputs: Tensor) -> Tensor:
        few = len(inputs) <= CompiledLinear.few(inputs.dtype)
        plan = self._plan(expert) if few else None
        return many_rows(inputs, *self._parameters(expert)) if plan is None else plan.run(inputs)

    def _plan(self, expert: int) -> LinearPlan | None:
        if expert not in self._plans:
            weight = Weight(*self._parameters(expert))
            self._plans[expert] = weight.plan() if weight.fits() else None
        return self._plans[expert]

    def _parameters(self, expert: int) -> tuple[Tensor, Tensor | None]:
        return self._weights[expert], None if self._biases is None else self._biases[expert]


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
    parameters: list[Any] = [
        experts._parameters.get(f"{name}{end}")
        for name in ("gate_up_proj" if experts.has_gate else "up_proj", "down_proj")
        for end in (("", "_bias") if experts.has_bias else ("",))
    ]
    if not all(_is_read(each, inputs) for each in parameters) or _are_followed(experts, inputs):
        _KNOWN.pop(experts, None)
        return None
    place = tuple((each.data_ptr(), each.shape, each.stride(), each.dtype) for each in parameters)
    known = _KNOWN.get(experts)
    if known is None or known.place != place:
        half = len(parameters) // 2
        enter, leave = (_Stack(part, experts.is_transposed) for part in (parameters[:half], parameters[half:]))
        known = _KNOWN[experts] = _Stacks(place, enter, leave)
    return known


def _is_read(parameter: nn.Parameter | None, inputs: Tensor) -> bool:
    return type(parameter) is nn.Parameter and parameter.is_cpu and parameter.dtype is inputs.dtype


def _are_followed(experts: Any, inputs: Tensor) -> bool:
    if is_followed(inputs) or not inputs.is_cpu or experts._is_expert_parallel:
        return True
    return torch.is_grad_enabled() and any(each.requires_grad for each in experts.parameters())
