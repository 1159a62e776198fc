"""Mixtures of experts: each expert multiplies the tokens that chose it, and a token sums what its experts give."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol, TypeGuard
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from winnow.kernels.gate import Gate
from winnow.kernels.mixture import MixturePlan, fit_together
from winnow.kernels.recording import this_thread
from winnow.kernels.stack import StackPlan
from winnow.models.compiled import FEW
from winnow.models.gates import gate_of
from winnow.models.recorded import is_followed
from winnow.models.replacing import is_watched


class Layers(Protocol):
    """The linear layers of all experts of one kind: those that enter them, or those that leave."""

    @property
    def outputs(self) -> int:
        """Outputs of each layer."""

    def one(self, expert: int, rows: Tensor) -> Tensor:
        """rows [R, I] of the tokens that chose an expert -> [R, O]"""

    def plan(self, rows: Tensor, most: int) -> StackPlan | None:
        """That of all experts; None where kernels are not the fastest for some rows, of which one has `most`."""


def keeps_experts_in_one(module: nn.Module) -> TypeGuard[Any]:
    """True for a module of experts in one tensor, as `transformers.integrations.moe` describes them."""
    if "is_concatenated" not in vars(module):
        return False
    enter, leave = parameters_of(module)
    return all(isinstance(each, nn.Parameter) for each in (*enter, *leave))


def parameters_of(experts: Any) -> tuple[list[Any], list[Any]]:
    """Parameters of the layers that enter experts in one tensor, and of those that leave: weight, and bias if any.

    A weight is [E, O, I], or [E, I, O] where `is_transposed`; a bias [E, O]. None for one that is no parameter.
    """
    ends = ("", "_bias") if experts.has_bias else ("",)
    enter, leave = ([experts._parameters.get(name + end) for end in ends] for name in weight_names(experts))
    return enter, leave


def weight_names(experts: Any) -> tuple[str, str]:
    """Names of the weights that enter experts in one tensor, and of those that leave."""
    return "gate_up_proj" if experts.has_gate else "up_proj", "down_proj"


def mix(
    experts: Any, enter: Layers, leave: Layers, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """hidden_states [T, W], of which each token has K experts [T, K] with their weights [T, K] -> [T, W].

    experts: the module, for what is between its layers, and after them.
    """
    plan = _plan(experts, enter, leave, hidden_states, top_k_index.shape[1])
    if plan is not None and not is_followed(top_k_weights):
        return plan.run(hidden_states, top_k_index.long(), top_k_weights.float())
    work = partial(_mixed, experts, enter, leave, hidden_states, top_k_index, top_k_weights)
    recording = this_thread.recording
    if recording is None or all(each.plan(hidden_states, len(hidden_states)) is not None for each in (enter, leave)):
        return work()
    # The host counts the tokens of experts, which are others for every step.
    return recording.anew(work)


class _Known(NamedTuple):
    """The plan of a module of experts."""

    made_of: tuple[Any, ...]
    """All that its gate depends on, its layers, and how many experts a token has: the plan is for these."""
    plan: MixturePlan | None


_SETTINGS = ("alpha", "limit", "swiglu_alpha", "swiglu_limit", "_apply_gate")
"""Names of all that gates of transformers' models depend on, but their activation. A gate is tried again for others."""
_KNOWN: WeakKeyDictionary[nn.Module, _Known] = WeakKeyDictionary()
"""Apart from the modules, so that copies and files of these hold no addresses."""


def _plan(experts: Any, enter: Layers, leave: Layers, hidden_states: Tensor, chosen: int) -> MixturePlan | None:
    """That of few tokens; None for many, and where an expert does anything but to gate as the kernels do."""
    most = len(hidden_states)
    if not 0 < most <= FEW:
        return None
    first, last = enter.plan(hidden_states, most), leave.plan(hidden_states, most)
    if first is None or last is None:
        return None
    activation, settings = getattr(experts, "act_fn", None), vars(experts)
    made_of = (activation, *map(settings.get, _SETTINGS), first, last, chosen)
    known = _KNOWN.get(experts)
    if known is None or known.made_of != made_of:
        known = _KNOWN[experts] = _Known(made_of, _made(experts, first, last, chosen))
    return None if isinstance(activation, nn.Module) and is_watched(activation) else known.plan


def _made(experts: Any, enter: StackPlan, leave: StackPlan, chosen: int) -> MixturePlan | None:
    interleaved = not experts.is_concatenated
    if not fit_together(enter, leave, interleaved):
        return None
    gate = _gate_of(experts, leave)
    return None if gate is None else MixturePlan(enter, leave, chosen, gate, interleaved)


def _gate_of(experts: Any, leave: StackPlan) -> Gate | None:
    """The gate of experts; None where they have none that the kernels know, or do anything else, too."""
    if not experts.has_gate or getattr(experts, "has_post_expert_norm", False):
        return None

    def gating(gates: Tensor, ups: Tensor) -> Tensor:
        both = torch.cat((gates, ups), 1) if experts.is_concatenated else torch.stack((gates, ups), 2).flatten(1)
        found: Tensor = experts._apply_gate(both)
        return found

    return gate_of(gating, leave.inputs, leave.dtype)


def _mixed(
    experts: Any, enter: Layers, leave: Layers, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    tokens, chosen = top_k_index.shape
    given, weights = top_k_index.reshape(-1).long(), top_k_weights.reshape(-1, 1)
    if tokens == 1:
        weighted = _outputs(experts, enter, leave, hidden_states.expand(chosen, -1), _Chosen(given, 1)) * weights
    else:
        ids, order = given.sort()
        outputs = _outputs(experts, enter, leave, hidden_states[order // chosen], _Chosen(ids, tokens))
        weighted = (outputs * weights[order])[order.argsort()]
    return weighted.view(tokens, chosen, weighted.shape[-1]).sum(1).to(hidden_states.dtype)


class _Chosen:
    """Experts of rows, those of one beside each other."""

    def __init__(self, ids: Tensor, most: int) -> None:
        """ids: [S]; most: rows that an expert may have."""
        self.ids, self.most = ids, most

    @cached_property
    def counted(self) -> tuple[list[int], list[int]]:
        """The experts that somebody chose, and how many rows each has: numbers that the host looks at."""
        ids, counts = self.ids.unique_consecutive(return_counts=True)
        return ids.tolist(), counts.tolist()


def _outputs(experts: Any, enter: Layers, leave: Layers, rows: Tensor, chosen: _Chosen) -> Tensor:
    """rows [S, W] -> [S, W], each by its expert."""
    inner = _multiplied(enter, rows, chosen)
    inner = experts._apply_gate(inner) if experts.has_gate else experts.act_fn(inner)
    outputs = _multiplied(leave, inner, chosen)
    return experts.post_expert_norm(outputs) if getattr(experts, "has_post_expert_norm", False) else outputs


def _multiplied(layers: Layers, rows: Tensor, chosen: _Chosen) -> Tensor:
    """rows [S, I] -> [S, O], each by the layer of its expert."""
    plan = layers.plan(rows, chosen.most)
    if plan is not None:
        return plan.run(rows, chosen.ids)
    used, counts = chosen.counted
    if not used:
        return rows.new_empty(0, layers.outputs)
    plan = layers.plan(rows, max(counts))
    if plan is not None:
        return plan.run(rows, chosen.ids)
    return torch.cat([layers.one(expert, part) for expert, part in zip(used, rows.split(counts), strict=True)])
