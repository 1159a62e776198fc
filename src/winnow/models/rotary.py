"""Rotary embeddings of models by the compiled kernel: which attention layers get it, and how."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from winnow.kernels import rotary
from winnow.models.calls import Successors, replace_calls
from winnow.models.recorded import is_followed

_FUNCTION = "apply_rotary_pos_emb"
"""The name that transformers' models give to the function, in the module of each."""
_ARGUMENTS = ("q", "k", "cos", "sin")
_SIZES = (2, 3, 5, 8)
"""Rows, heads, tokens and channels that a function is tried with."""

_REST = 6
"""Channels behind those, that may stay as they are."""

Embed = Callable[..., tuple[Tensor, Tensor]]
"""Queries and keys [R, H, N, D], cos and sin [R, N, A] -> both, turned, in all channels or in the first ones."""


class RotaryByKernel:
    """A model's function for rotary embedding, by the kernel where it reads what is given; else as the model's own."""

    def __init__(self, own: Embed, shares_angles: bool, leaves_rest: bool = False) -> None:
        """own: one that computes the same. shares_angles: for pairs of channels. leaves_rest: those without angles."""
        self._own = own
        self._share = 2 if shares_angles else 1
        self._leaves_rest = leaves_rest

    def __call__(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *other: Any, **named: Any) -> Any:
        """The same as the model's own; `other` and `named` are its own, too."""
        plain = not other and not named and not is_followed(q, k, cos, sin)
        layout = rotary.layout_of(q, k, cos, sin, self._share) if plain else None
        if layout is None or (layout.rest and not self._leaves_rest):
            return self._own(q, k, cos, sin, *other, **named)
        return rotary.turn(q, k, cos, sin, layout)


def embed_in_one_pass(model: nn.Module) -> None:
    """Has the attention layers of a model on the CPU embed positions by Winnow's kernel, in place.

    torch takes sixteen operators for it, which cost more than they compute where a token is decoded. Functions that
    compute anything else are left: each is tried before. See `replace_calls`.
    """
    replace_calls(model, successors)


def successors() -> Successors:
    """The kernel for a model's own function."""
    return Successors((_FUNCTION,), lambda _, own: by_kernel(own))


def by_kernel(own: Embed) -> RotaryByKernel | None:
    """A model's function by the kernel, with as many angles as it takes; None if it computes anything else."""
    if tuple(signature(own).parameters)[: len(_ARGUMENTS)] != _ARGUMENTS:
        return None
    share = next((each for each in (False, True) if computes_the_same(own, each)), None)
    return None if share is None else RotaryByKernel(own, share, computes_the_same(own, share, _REST))


@torch.no_grad()
def computes_the_same(own: Embed, shares_angles: bool, rest: int = 0) -> bool:
    """True if the kernel gives what a model's function gives: in bfloat16 to the bit, in float32 but for roundings.

    shares_angles: for pairs of channels. rest: channels without angles.
    """
    rows, heads, tokens, dim = _SIZES
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        queries, keys = (_drawn(generator, rows, each, tokens, dim + rest).to(dtype) for each in (heads, 1))
        # Angles of which no two are alike, so that channels of other pairs are told.
        cos, sin = _drawn(generator, 2, rows, tokens, dim // 2 if shares_angles else dim).to(dtype)
        try:
            expected = own(queries, keys, cos, sin)
        except (TypeError, ValueError, IndexError, RuntimeError):
            return False  # it takes other tensors
        layout = rotary.layout_of(queries, keys, cos, sin, 2 if shares_angles else 1)
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
