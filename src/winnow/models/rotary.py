"""Rotary embeddings of models by the compiled kernel: which attention layers get it, and how."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import getclosurevars, signature
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from winnow.kernels import native, rotary
from winnow.models.recorded import is_followed

_FUNCTION = "apply_rotary_pos_emb"
"""The name that transformers' models give to the function, in the module of each."""
_ARGUMENTS = ("q", "k", "cos", "sin")
_RENAMING = "transformers.utils.deprecation"
"""The module of wrappers that take arguments by earlier names."""
_SIZES = (2, 3, 5, 8)
"""Rows, heads, tokens and channels that a function is tried with."""

Embed = Callable[..., tuple[Tensor, Tensor]]
"""Queries and keys [R, H, N, D], cos and sin [R, N, D], or [R, N, D/2] -> both, turned."""


class RotaryByKernel:
    """A model's function for rotary embedding, by the kernel where it reads what is given; else as the model's own."""

    def __init__(self, own: Embed, shares_angles: bool) -> None:
        """own: one that computes the same. shares_angles: with D/2 angles, not D."""
        self._own = own
        self._share = 2 if shares_angles else 1

    def __call__(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *other: Any, **named: Any) -> Any:
        """The same as the model's own; `other` and `named` are its own, too."""
        layout = None if other or named or is_followed(q, k, cos, sin) else rotary.layout_of(q, k, cos, sin)
        if layout is None or layout.angles * self._share != layout.dim:
            return self._own(q, k, cos, sin, *other, **named)
        return rotary.turn(q, k, cos, sin, layout)


def embed_in_one_pass(model: nn.Module) -> None:
    """Has the attention layers of a model on the CPU embed positions by Winnow's kernel, in place.

    torch takes sixteen operators for it, which cost more than they compute where a token is decoded. A layer becomes
    one of a class that differs from its own in the function that its forward calls, and in nothing else; the classes
    and functions of transformers stay as they are, for other models. Functions that compute anything else are left:
    each is tried before. Forwards and functions that somebody puts into a class or a module later are called in place
    of the kernel.
    """
    for layer in model.modules():
        made = _embedding(type(layer))
        if made is not None and "forward" not in vars(layer):
            layer.__class__ = made


class _Embedding:
    """The part of a class of attention layers that copies and pickles read, which find its base by name."""

    _own_class: type[nn.Module]

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced: Any = super().__reduce_ex__(max(2, protocol))
        return _empty_layer, (self._own_class,), *reduced[2:]


def _empty_layer(own_class: type[nn.Module]) -> nn.Module:
    return nn.Module.__new__(_embedding(own_class) or own_class)


def _embedding(kind: type[nn.Module]) -> type[nn.Module] | None:
    """A class of layers whose forward calls the kernel; None where it has no such call, or there is no library."""
    forward = kind.forward
    if native.library() is None or not isinstance(forward, FunctionType):
        return None
    inner, _ = _without_renaming(forward)
    own = inner.__globals__.get(_FUNCTION) if _FUNCTION in inner.__code__.co_names else None
    if own is None:
        return None
    if (kind, forward, own) not in _MADE:
        _MADE[kind, forward, own] = _make(kind, forward, own)
    return _MADE[kind, forward, own]


_MADE: dict[tuple[type[nn.Module], FunctionType, Embed], type[nn.Module] | None] = {}
"""Classes that `_embedding` made, by a class, its forward and the function that is called there."""


def _make(kind: type[nn.Module], forward: FunctionType, own: Embed) -> type[nn.Module] | None:
    kernel = by_kernel(own)
    if kernel is None:
        return None
    parts = {
        "forward": _calling(kind, forward, own, kernel),
        "_own_class": kind,
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
    }
    return type(kind.__name__, (_Embedding, kind), parts)


def _calling(kind: type[nn.Module], forward: FunctionType, own: Embed, kernel: RotaryByKernel) -> Callable[..., Any]:
    """The forward of a class of layers, which calls the kernel by the name of the model's own function."""
    inner, earlier = _without_renaming(forward)
    names = {**inner.__globals__, _FUNCTION: kernel}
    made = FunctionType(inner.__code__, names, inner.__name__, inner.__defaults__, inner.__closure__)
    made.__kwdefaults__ = inner.__kwdefaults__
    current, others = inner.__globals__.get, [each for each in inner.__code__.co_names if each in names]
    others.remove(_FUNCTION)

    @wraps(forward)
    def embedding(*given: Any, **named: Any) -> Any:
        # A compiler looks names up in the module of the code, where it finds the model's own function.
        if torch.compiler.is_compiling() or kind.forward is not forward or current(_FUNCTION) is not own:
            return kind.forward(*given, **named)
        if not earlier.isdisjoint(named):
            return kind.forward(*given, **named)  # which warns about the name
        names.update(zip(others, map(current, others), strict=True))  # somebody may have put others there
        return made(*given, **named)

    return embedding


def _without_renaming(forward: FunctionType) -> tuple[FunctionType, frozenset[str]]:
    """A forward without those wrappers of transformers that take arguments by earlier names, and these names."""
    earlier: set[str] = set()
    while forward.__globals__.get("__name__") == _RENAMING:
        earlier.add(getclosurevars(forward).nonlocals["old_name"])
        forward = forward.__wrapped__  # type: ignore[attr-defined]
    return forward, frozenset(earlier)


def by_kernel(own: Embed) -> RotaryByKernel | None:
    """A model's function by the kernel, with as many angles as it takes; None if it computes anything else."""
    if tuple(signature(own).parameters)[: len(_ARGUMENTS)] != _ARGUMENTS:
        return None
    fitting = (share for share in (False, True) if computes_the_same(own, share))
    return next((RotaryByKernel(own, share) for share in fitting), None)


@torch.no_grad()
def computes_the_same(own: Embed, shares_angles: bool) -> bool:
    """True if the kernel gives what a model's function gives: in bfloat16 to the bit, in float32 but for roundings.

    shares_angles: for D/2 angles, not D.
    """
    rows, heads, tokens, dim = _SIZES
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        queries, keys = (_drawn(generator, rows, each, tokens, dim).to(dtype) for each in (heads, 1))
        # Angles of which no two are alike, so that channels of other pairs are told.
        cos, sin = _drawn(generator, 2, rows, tokens, dim // 2 if shares_angles else dim).to(dtype)
        try:
            expected = own(queries, keys, cos, sin)
        except (TypeError, ValueError, IndexError, RuntimeError):
            return False  # it takes other tensors
        layout = rotary.layout_of(queries, keys, cos, sin)
        assert layout is not None
        found = rotary.turn(queries, keys, cos, sin, layout)
        if not isinstance(expected, tuple) or len(expected) != len(found):
            return False
        if not all(_alike(*pair) for pair in zip(found, expected, strict=True)):
            return False
    return True


def _drawn(generator: torch.Generator, *sizes: int) -> Tensor:
    return torch.randn(*sizes, generator=generator, device="cpu")


def _alike(found: Tensor, expected: Tensor) -> bool:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    return torch.equal(found, expected) or (found.dtype == torch.float32 and torch.allclose(found, expected, atol=1e-5))
