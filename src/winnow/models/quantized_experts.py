"""Experts whose layers have few bits, in place of a model's own that lie in one tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from winnow.kernels.linear import LinearPlan
from winnow.models.mixture import mix, parameters_of
from winnow.models.quantized import QuantizedLinear
from winnow.models.replacing import StandIn, is_watched
from winnow.models.rounding import Rounding


class QuantizedExperts(StandIn):
    """A mixture's experts, of which each has linear layers of its own; gate and norm stay the model's."""

    def __init__(self, experts: Any, rounding: Rounding) -> None:
        """experts: a module that `keeps_experts_in_one`; it stays."""
        super().__init__(experts)
        enter, leave = parameters_of(experts)
        gone = {id(each) for each in (*enter, *leave)}
        self._parameters = {name: each for name, each in experts._parameters.items() if id(each) not in gone}
        self._modules = dict(experts._modules)
        self.enter, self.leave = (
            _QuantizedLayers(_with_biases(rounding.layers(weights, experts.is_transposed), biases))
            for weights, *biases in (enter, leave)
        )

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """hidden_states [T, W], of which each token has K experts [T, K] with their weights [T, K] -> [T, W]"""
        return mix(self, self.enter, self.leave, hidden_states, top_k_index, top_k_weights)


class _QuantizedLayers(nn.ModuleList):
    """A linear layer of every expert."""

    @property
    def outputs(self) -> int:
        """Outputs of each layer."""
        found: Any = self._modules["0"]
        return int(found.out_features)

    def one(self, expert: int, rows: Tensor) -> Tensor:
        found: Tensor = self[expert](rows)
        return found

    def plans(self, experts: list[int], rows: Tensor, most: int) -> list[LinearPlan] | None:
        few = rows[:most]
        made = [_plan_of(self._modules[str(expert)], few) for expert in experts]  # faster than by number
        plans = [plan for plan in made if plan is not None]
        return plans if len(plans) == len(experts) else None


def _plan_of(layer: nn.Module | None, rows: Tensor) -> LinearPlan | None:
    """None for what others put in place of a layer, or watch, too."""
    if not isinstance(layer, QuantizedLinear) or is_watched(layer):
        return None
    return layer.plan_for_few(rows)


def _with_biases(layers: Sequence[QuantizedLinear], biases: Sequence[Tensor]) -> Iterator[QuantizedLinear]:
    """Layers of one expert after another; biases: none, or one tensor [E, O]."""
    for expert, layer in enumerate(layers):
        yield layer.with_bias(biases[0][expert].detach().clone()) if biases else layer
