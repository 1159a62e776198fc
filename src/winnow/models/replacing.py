"""Layers of a model that others take the place of."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn


def replace_layers(model: nn.Module, successor: Callable[[str, nn.Module], nn.Module | None]) -> bool:
    """Puts others in place of a model's layers, under the same names. True if it did for any.

    successor: what takes the place of a layer, given its name within its parent; None for one that stays.
    """
    replaced = False
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            made = successor(name, layer)
            if made is not None:
                setattr(parent, name, made)
                replaced = True
    return replaced
