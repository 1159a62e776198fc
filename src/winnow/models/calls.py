"""Layers whose forward calls other functions than those of its module, by the names that these have there.

The classes and functions of transformers stay as they are, for other models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import getclosurevars
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import nn

from winnow.kernels import native

Function = Callable[..., Any]
_RENAMING = "transformers.utils.deprecation"
"""The module of wrappers that take arguments by earlier names."""
_HOOKING = "transformers.integrations.accelerate"
"""The module of wrappers that call hooks of modules within a layer, whose weights its forward reads itself."""


class Successors(NamedTuple):
    """The functions that others take the place of. A function of a module, so that pickles find it: see `find`."""

    names: tuple[str, ...]
    find: Callable[[str, Function], Function | None]
    """The successor of a model's own function of a name; None where that one stays."""


def replace_calls(model: nn.Module, successors: Callable[[], Successors]) -> None:
    """Has layers of a model on the CPU call successors of their module's functions, in place.

    A layer becomes one of a class that differs from its own in the functions that its forward calls, and in nothing
    else. Forwards and functions that somebody puts into a class or a module later are called in place of successors.

    successors: a function of a module, which pickles name.
    """
    for layer in model.modules():
        made = _calling(type(layer), successors)
        if made is not None and "forward" not in vars(layer):
            layer.__class__ = made


class _Calling:
    """The part of a class of layers that copies and pickles read, which find its base by name."""

    _own_class: type[nn.Module]
    _successors: Callable[[], Successors]

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced: Any = super().__reduce_ex__(max(2, protocol))
        return _empty_layer, (self._own_class, self._successors), *reduced[2:]


def _empty_layer(own_class: type[nn.Module], successors: Callable[[], Successors]) -> nn.Module:
    return nn.Module.__new__(_calling(own_class, successors) or own_class)


class _Forward(NamedTuple):
    """The forward of a class of layers, and functions of its module that it calls."""

    kind: type[nn.Module]
    forward: FunctionType
    own: tuple[tuple[str, Function], ...]


def _calling(kind: type[nn.Module], successors: Callable[[], Successors]) -> type[nn.Module] | None:
    """A class of layers whose forward calls successors; None where there are none, or there is no library."""
    forward = kind.forward
    if native.library() is None or not isinstance(forward, FunctionType):
        return None
    inner, _, _ = _unwrapped(forward)
    called, names = inner.__globals__, successors().names
    own = tuple((name, called[name]) for name in names if name in inner.__code__.co_names and name in called)
    if not own:
        return None
    of = _Forward(kind, forward, own)
    if (of, successors) not in _MADE:
        _MADE[of, successors] = _make(of, successors)
    return _MADE[of, successors]


_MADE: dict[tuple[_Forward, Callable[[], Successors]], type[nn.Module] | None] = {}
"""Classes that `_calling` made."""


def _make(of: _Forward, successors: Callable[[], Successors]) -> type[nn.Module] | None:
    find = successors().find
    found = {name: successor for name, own in of.own if (successor := find(name, own)) is not None}
    if not found:
        return None
    parts = {
        "forward": _forward(of, found),
        "_own_class": of.kind,
        "_successors": staticmethod(successors),
        "__module__": of.kind.__module__,
        "__doc__": of.kind.__doc__,
    }
    return type(of.kind.__name__, (_Calling, of.kind), parts)


def _forward(of: _Forward, successors: dict[str, Function]) -> Function:
    """The forward of a class of layers, which calls successors by the names of the model's own functions."""
    kind, forward, own = of
    inner, earlier, hooked = _unwrapped(forward)
    names = {**inner.__globals__, **successors}
    made = FunctionType(inner.__code__, names, inner.__name__, inner.__defaults__, inner.__closure__)
    made.__kwdefaults__ = inner.__kwdefaults__
    current = inner.__globals__.get
    replaced = [(name, each) for name, each in own if name in successors]
    others = [each for each in inner.__code__.co_names if each in names and each not in successors]

    @wraps(forward)
    def calling(layer: Any, *given: Any, **named: Any) -> Any:
        # A compiler looks names up in the module of the code, where it finds the model's own functions.
        if torch.compiler.is_compiling() or kind.forward is not forward:
            return kind.forward(layer, *given, **named)
        if not earlier.isdisjoint(named):
            return kind.forward(layer, *given, **named)  # which warns about the name
        if any(current(name) is not each for name, each in replaced) or _has_hooks(layer, hooked):
            return kind.forward(layer, *given, **named)
        names.update(zip(others, map(current, others), strict=True))  # somebody may have put others there
        return made(layer, *given, **named)

    return calling


def _has_hooks(layer: nn.Module, names: Sequence[str]) -> bool:
    """True if modules of a layer have hooks that its wrapper calls."""
    return any("_hf_hook" in vars(getattr(layer, name)) for name in names)


class _Unwrapped(NamedTuple):
    """A forward without wrappers of transformers."""

    inner: FunctionType
    earlier: frozenset[str]
    """Names by which it once took arguments."""
    hooked: tuple[str, ...]
    """Modules of the layer whose hooks are called first."""


def _unwrapped(forward: FunctionType) -> _Unwrapped:
    earlier: set[str] = set()
    hooked: tuple[str, ...] = ()
    while (module := forward.__globals__.get("__name__")) in (_RENAMING, _HOOKING):
        closed = getclosurevars(forward).nonlocals
        if module == _RENAMING:
            earlier.add(closed["old_name"])
        else:
            hooked += tuple(closed["child_module_names"])
        forward = forward.__wrapped__  # type: ignore[attr-defined]
    return _Unwrapped(forward, frozenset(earlier), hooked)
