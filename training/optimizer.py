"""Muon for the matrices between embeddings, after Jordan et al. (2024)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


def split_parameters(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Hidden matrices for Muon, everything else (embeddings, norms) for AdamW."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        hidden = parameter.ndim == 2 and "embed" not in name and "lm_head" not in name
        (matrices if hidden else others).append(parameter)
    return matrices, others


def orthogonalise(gradients: Tensor, rounds: int = 5) -> Tensor:
    """Bring the singular values of a stack of matrices near one (Newton-Schulz)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = gradients.shape[-2] > gradients.shape[-1]
    x = gradients.mT if tall else gradients
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(rounds):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal, in full precision.

    Matrices of one shape are stacked, which keeps the extra cost small on a CPU.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            stacks: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    stacks[parameter.shape].append(parameter)
            for shape, parameters in stacks.items():
                self._step_stack(shape, parameters, group)

    def _step_stack(self, shape: torch.Size, parameters: list[nn.Parameter], group: dict[str, Any]) -> None:
        directions = []
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is None:
                raise ValueError("a stacked matrix has no gradient")
            state = self.state[parameter]
            momentum = state.setdefault("momentum", torch.zeros_like(parameter))
            momentum.lerp_(gradient, 1 - group["momentum"])
            directions.append(torch.lerp(gradient, momentum, group["momentum"]))
        updates = orthogonalise(torch.stack(directions))
        scale = max(1.0, shape[0] / shape[1]) ** 0.5
        for parameter, update in zip(parameters, updates, strict=True):
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.sub_(update, alpha=group["lr"] * scale)
