"""Layers whose weights may be rounded to fewer bits, and those that stay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeGuard

from torch import nn

from winnow.models.direct import DirectLinear
from winnow.models.mixture import keeps_experts_in_one, weight_names

STAYING = ("gate", "router")
"""Names of layers that stay: what chooses among experts."""
_IN_EIGHT = ("kv_b_proj",)
"""Names of layers that get 8 bits in any case: what latents are expanded with, which kernels read head by head."""


def is_linear(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """True for torch's own linear layers, and those that multiply by the same weight."""
    return (type(layer) is nn.Linear or isinstance(layer, DirectLinear)) and is_as_made(layer)


def is_as_made(layer: nn.Module) -> bool:
    """True for a layer with the forward of its class, and a weight that is not computed anew, as by pruning."""
    return "weight" in layer._parameters and "forward" not in vars(layer)


def embeds_plainly(layer: nn.Module) -> TypeGuard[nn.Embedding]:
    """True for torch's own embeddings that look rows up and nothing else."""
    return type(layer) is nn.Embedding and layer.max_norm is None and is_as_made(layer)


def holds_experts(layer: nn.Module) -> TypeGuard[Any]:
    """True for a module of a mixture's experts that computes with them as its class does, and has all of them."""
    return keeps_experts_in_one(layer) and "forward" not in vars(layer) and not layer._is_expert_parallel


def may_be_rounded(layer: nn.Module, parameter: str) -> bool:
    """True for the weight of a linear layer, by its name there, and for those of a mixture's experts."""
    return parameter in weight_names(layer) if holds_experts(layer) else parameter == "weight" and is_linear(layer)


def fewest_bits(name: str) -> int:
    """The fewest bits that a layer may get, by its name within its parent: 4 or 8."""
    return 8 if name in _IN_EIGHT else 4


def weights_to_round(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Weights of a model that may be rounded: path and layer of each, and its name there."""
    for path, layer in model.named_modules():
        if path.rpartition(".")[2] not in STAYING:
            yield from ((path, layer, name) for name in layer._parameters if may_be_rounded(layer, name))
