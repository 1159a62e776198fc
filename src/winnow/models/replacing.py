"""Layers of a model that others take the place of."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from inspect import signature
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as modules

_HOOKS = tuple(name for name in vars(nn.Module()) if "_hook" in name and "state_dict" not in name)
"""Names that modules keep hooks on their calls under. Those on state dicts are for one module and its parameters."""

_OUTPUT_HOOKS = "transformers.utils.output_capturing"
"""The module of hooks that collect hidden states."""


class StandIn(nn.Module):
    """A layer with all that another one had, under the same names, in whose place it is."""

    _replaced: type[nn.Module]

    def __init__(self, layer: nn.Module) -> None:
        """layer: the other one, which may be a stand-in itself: then both stand for the same."""
        super().__init__()
        self.__dict__.update(layer.__dict__)
        self.__dict__.setdefault("_replaced", type(layer))

    def __getattr__(self, name: str) -> Any:
        """Also what the class of the other layer has, whose forward may call methods of its own."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            for kind in self._replaced.__mro__ if "_replaced" in self.__dict__ else ():
                if name in vars(kind):
                    found = vars(kind)[name]
                    return found.__get__(self, type(self)) if hasattr(found, "__get__") else found
            raise

    def as_before(self, hidden_states: Tensor) -> Tensor:
        """[..., W] -> the outputs of the layer that was here."""
        found: Tensor = self._replaced.forward(self, hidden_states)
        return found

    def extra_repr(self) -> str:
        """That of the layer that was here."""
        return self._replaced.extra_repr(self)


def may_be_replaced(layer: nn.Module) -> bool:
    """True for a layer of hidden states and nothing else, whose forward is that of its class."""
    # One that somebody gave a forward of its own is theirs.
    if isinstance(layer, StandIn) or "forward" in vars(layer):
        return False
    return len(signature(type(layer).forward).parameters) == 2  # itself and the hidden states; gated ones take more


def is_watched(layer: nn.Module) -> bool:
    """True if others see or change what a layer is called with or gives: by hooks, or by a forward of their own."""
    # For every token, so without a call or a loop.
    return bool(
        layer._forward_hooks
        or layer._forward_pre_hooks
        or "forward" in layer.__dict__
        or modules._global_forward_hooks
        or modules._global_forward_pre_hooks
    )


def is_watched_by_others(layer: nn.Module) -> bool:
    """The same, but for hooks that transformers left: they do nothing unless a forward pass is asked for more."""
    hooks = (*layer._forward_hooks.values(), *layer._forward_pre_hooks.values())
    if any(getattr(hook, "__module__", None) != _OUTPUT_HOOKS for hook in hooks):
        return True
    return "forward" in layer.__dict__ or bool(modules._global_forward_hooks or modules._global_forward_pre_hooks)


def hooks_of(layer: nn.Module) -> dict[str, Any]:
    """The very dictionaries of a layer's hooks, by name: what a hook's handle removes it from."""
    return {name: vars(layer)[name] for name in _HOOKS}


def replace_layers(model: nn.Module, successor: Callable[[str, nn.Module], nn.Module | None]) -> bool:
    """Puts others in place of a model's layers, under the same names. True if it did for any.

    successor: what takes the place of a layer, given its name within its parent; None for one that stays. Layers that
    something took the place of are let go of, their weights with them, before the next parent's are.
    """
    replaced = False
    parents, seen = deque([model]), {model}
    while parents:
        parent = parents.popleft()
        for name, layer in list(parent.named_children()):
            made = successor(name, layer)
            if made is not None:
                setattr(parent, name, made)
                replaced = True
            below = layer if made is None else made
            if below not in seen:
                seen.add(below)
                parents.append(below)
    return replaced


def replace_alike(
    model: nn.Module,
    kind: Callable[[nn.Module], Hashable | None],
    tried: Callable[[nn.Module], Callable[[nn.Module], nn.Module] | None],
) -> None:
    """Puts others in place of a model's layers that compute the same: one of each kind is tried.

    kind: the same for layers that compute alike, None for one that stays. tried: the outcome of the trial of a layer
    that has a kind: what makes its successor, and those of its kind; None where they stay.
    """
    makers: dict[Hashable, Callable[[nn.Module], nn.Module] | None] = {}

    def after_trial(_: str, layer: nn.Module) -> nn.Module | None:
        of = kind(layer)
        if of is None:
            return None
        if of not in makers:
            makers[of] = tried(layer)
        make = makers[of]
        return None if make is None else make(layer)

    replace_layers(model, after_trial)
