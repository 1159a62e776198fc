"""Experts whose layers have few bits, in place of a model's own that lie in one tensor."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from winnow.models.mixture import mix, parameters_of
from winnow.models.replacing import StandIn
from winnow.models.rounding import Rounding


class QuantizedExperts(StandIn):
    """A mixture's experts with linear layers of few bits; gate and norm stay the model's."""

    def __init__(self, experts: Any, rounding: Rounding) -> None:
        """experts: a module that `keeps_experts_in_one`; it stays."""
        super().__init__(experts)
        enter, leave = parameters_of(experts)
        gone = {id(each) for each in (*enter, *leave)}
        self._parameters = {name: each for name, each in experts._parameters.items() if id(each) not in gone}
        self._modules = dict(experts._modules)
        self.enter, self.leave = (
            rounding.stack(weights, experts.is_transposed).with_bias(biases[0].detach().clone() if biases else None)
            for weights, *biases in (enter, leave)
        )

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """hidden_states [T, W], of which each token has K experts [T, K] with their weights [T, K] -> [T, W]"""
        return mix(self, self.enter, self.leave, hidden_states, top_k_index, top_k_weights)
