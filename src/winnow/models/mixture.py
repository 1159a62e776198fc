"""Mixtures of experts: each expert multiplies the tokens that chose it, and a token sums what its experts give."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor, nn

from winnow.kernels.linear import LinearPlan, run_each
from winnow.kernels.recording import this_thread


class Layers(Protocol):
    """The linear layers of all experts of one kind: those that enter them, or those that leave."""

    @property
    def outputs(self) -> int:
        """Outputs of each layer."""

    def one(self, expert: int, rows: Tensor) -> Tensor:
        """rows [R, I] of the tokens that chose an expert -> [R, O]"""

    def plans(self, experts: list[int], rows: Tensor, most: int) -> list[LinearPlan] | None:
        """Those of experts that multiply `most` of some rows at the most; None where kernels are not the fastest."""


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
    work = partial(_mixed, experts, enter, leave, hidden_states, top_k_index, top_k_weights)
    recording = this_thread.recording
    # A recorded step has other experts for every token.
    return work() if recording is None else recording.anew(work)


def _mixed(
    experts: Any, enter: Layers, leave: Layers, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    tokens, chosen = top_k_index.shape
    ids, order = top_k_index.reshape(-1).sort()
    used, counts = (each.tolist() for each in ids.unique_consecutive(return_counts=True))
    inner = _multiplied(enter, hidden_states[order // chosen], used, counts)
    inner = experts._apply_gate(inner) if experts.has_gate else experts.act_fn(inner)
    outputs = _multiplied(leave, inner, used, counts)
    if getattr(experts, "has_post_expert_norm", False):
        outputs = experts.post_expert_norm(outputs)
    weighted = outputs * top_k_weights.reshape(-1)[order, None]
    in_order = weighted[order.argsort()]
    return in_order.view(tokens, chosen, weighted.shape[-1]).sum(1).to(hidden_states.dtype)


def _multiplied(layers: Layers, rows: Tensor, experts: list[int], counts: list[int]) -> Tensor:
    """rows [S, I], those of an expert together: so many for each expert -> [S, O]"""
    if not experts:
        return rows.new_empty(0, layers.outputs)
    plans = layers.plans(experts, rows, max(counts))
    if plans is not None:
        return run_each(plans, rows, counts)
    return torch.cat([layers.one(expert, part) for expert, part in zip(experts, rows.split(counts), strict=True)])
