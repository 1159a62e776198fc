"""Linear layers of few bits whose parameters lie behind each other: those of a mixture's experts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from winnow.kernels import native
from winnow.kernels.linear import Weight, multiplies_many, outruns_torch
from winnow.kernels.stack import StackPlan, layers_fit
from winnow.models.planned import PlanHolder
from winnow.models.quantized import QuantizedLinear
from winnow.models.recorded import is_followed


class _Made:
    """Layers of a stack, and their plans, which last as long as its parameters lie where they do."""

    def __init__(self, place: tuple[object, ...]) -> None:
        self.place = place
        self.layers: dict[int, QuantizedLinear] = {}
        self.plans: dict[str, StackPlan | None] = {}
        """By instruction sets, of which not all read what torch packs."""


class QuantizedStack(PlanHolder):
    """As many layers of a kind as there are experts. Each is made when it is needed, over its part of the parameters.

    One parameter for all is checked at every token, instead of one of each expert that is chosen.
    """

    scales: nn.Parameter
    """In the dtype that the model computes in."""
    bias: nn.Parameter | None
    _plan: _Made | None = None

    def __init__(self, kind: type[QuantizedLinear], stored: Sequence[Tensor], bias: Tensor | None) -> None:
        """stored: what `kind` writes weights [E, O, I] as; bias: [E, O]."""
        super().__init__()
        self.kind = kind
        for name, tensor in zip(kind.stored_names, stored, strict=True):
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias, requires_grad=False))

    def with_bias(self, bias: Tensor | None) -> Self:
        """The same layers with other biases [E, O]; the weights are the same memory."""
        return type(self)(self.kind, [getattr(self, name).detach() for name in self.kind.stored_names], bias)

    def __len__(self) -> int:
        return len(self.scales)

    def __getitem__(self, expert: int) -> QuantizedLinear:
        """The layer of an expert. It shares memory with the stack, and gradients where parameters want them.

        Raises IndexError for an expert that there is not.
        """
        if expert >= len(self):
            raise IndexError(f"There are {len(self)} experts, and none with the number {expert}.")
        made = self._made()
        if made is None:
            return self._layer(expert, followed=True)
        if expert not in made.layers:
            made.layers[expert] = self._layer(expert, followed=False)
        return made.layers[expert]

    def __iter__(self) -> Iterator[QuantizedLinear]:
        return (self[expert] for expert in range(len(self)))

    @property
    def outputs(self) -> int:
        """Outputs of each layer."""
        return self[0].out_features

    def one(self, expert: int, rows: Tensor) -> Tensor:
        """rows [R, I] of the tokens that chose an expert -> [R, O]"""
        found: Tensor = self[expert](rows)
        return found

    def plan(self, rows: Tensor, most: int) -> StackPlan | None:
        """That of all experts; None where kernels are not the fastest for some rows, of which one has `most`."""
        if not outruns_torch() or is_followed(rows) or not rows.is_cpu:
            return None
        if most > self.kind.compiled_few and not multiplies_many(self.scales.dtype):
            return None
        made = self._made()
        if made is None or rows.dtype is not self.scales.dtype:
            return None
        used = native.isa()
        if used not in made.plans:
            made.plans[used] = self._plan_here()
        return made.plans[used]

    def _made(self) -> _Made | None:
        """None while something else is computed in place of a parameter, as by pruning, or gradients want one."""
        names = self.kind.stored_names if self.bias is None else (*self.kind.stored_names, "bias")
        place = []
        for name in names:
            each = self._parameters.get(name)
            if type(each) is not nn.Parameter or (each.requires_grad and torch.is_grad_enabled()):
                self._plan = None
                return None
            place.append((each.data_ptr(), each.dtype, each.shape))
        if self._plan is None or self._plan.place != tuple(place):
            self._plan = _Made(tuple(place))
        return self._plan

    def _plan_here(self) -> StackPlan | None:
        """None where the kernels do not read such weights as they are stored."""
        if not self[0].is_compiled():
            return None
        numbers, scales = (getattr(self, name).detach() for name in self.kind.stored_names)
        weights = Weight(numbers, None if self.bias is None else self.bias.detach(), scales)
        return StackPlan(weights) if layers_fit(weights) else None

    def _layer(self, expert: int, followed: bool) -> QuantizedLinear:
        stored: list[Tensor] = [getattr(self, name)[expert] for name in self.kind.stored_names]
        bias: Tensor | None = None if self.bias is None else self.bias[expert]
        made = self.kind([each.detach() for each in stored], bias)
        if followed:
            parts: dict[str, Any] = dict(zip(self.kind.stored_names, stored, strict=True))
            made._parameters.update(parts | {"bias": bias})
        return made
