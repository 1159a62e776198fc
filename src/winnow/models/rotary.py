"""Rotary embeddings of models by the compiled kernel: which attention layers get it, and how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from winnow.kernels import rotary
from winnow.kernels.rotary import COMPLEX, HALVES, INTERLEAVED, Turning
from winnow.models.calls import Successors, replace_calls
from winnow.models.recorded import is_followed

_FUNCTIONS = ("apply_rotary_pos_emb", "apply_rotary_pos_emb_interleave", "apply_rotary_emb")
"""The names that transformers' models give to such functions, in the module of each."""
_TURNINGS = {
    ("q", "k", "cos", "sin"): (HALVES, Turning(share=2), INTERLEAVED),
    ("xq", "xk", "freqs_cis"): (COMPLEX,),
}
"""Those that functions are tried for, in this order, by their first arguments."""
_SIZES = (2, 3, 5, 8)
"""Rows, heads, tokens and channels that a function is tried with."""

_REST = 6
"""Channels behind those, that may stay as they are."""

Embed = Callable[..., tuple[Tensor, Tensor]]
"""Queries and keys [R, H, N, D], cos and sin [R, N, A] or complex angles [R, N, D/2] -> both, turned, in all channels
or in the first ones."""


class RotaryByKernel:
    """A model's function for rotary embedding, by the kernel where it reads what is given; else as the model's own."""

    def __init__(self, own: Embed, turning: Turning, leaves_rest: bool = False) -> None:
        """own: one that computes the same. leaves_rest: channels without angles."""
        self._own = own
        self._turning = turning
        self._leaves_rest = leaves_rest
        self._angles = 1 if turning is COMPLEX else 2

    def __call__(
        self, q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor | None = None, *other: Any, **named: Any
    ) -> Any:
        """The same as the model's own; `other` and `named` are its own, too.

        k: None where keys are turned already. sin: None where `cos` are complex angles.
        """
        angles = (cos,) if sin is None else (cos, sin)
        if k is None or other or named or len(angles) != self._angles or is_followed(q, k, *angles):
            return self._own(q, k, *angles, *other, **named)
        read = as_read(self._turning, angles)
        layout = rotary.layout_of(q, k, *read, self._turning)
        if layout is None or (layout.rest and not self._leaves_rest):
            return self._own(q, k, *angles)
        return rotary.turn(q, k, *read, layout)


def as_read(turning: Turning, angles: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """A function's angles as the kernel reads them: cos and sin, or complex numbers as twice as many of fp32."""
    if turning is not COMPLEX:
        cos, sin = angles
        return cos, sin
    (numbers,) = angles
    parts = torch.view_as_real(numbers).flatten(-2) if numbers.is_complex() else numbers
    return parts, parts


def embed_in_one_pass(model: nn.Module) -> None:
    """Has the attention layers of a model on the CPU embed positions by Winnow's kernel, in place.

    torch takes sixteen operators or more for it, which cost more than they compute where a token is decoded. Functions
    that compute anything else are left: each is tried before. See `replace_calls`.
    """
    replace_calls(model, successors)


def successors() -> Successors:
    """The kernel for a model's own functions."""
    return Successors(_FUNCTIONS, lambda _, own: by_kernel(own))


def by_kernel(own: Embed) -> RotaryByKernel | None:
    """A model's function by the kernel, with the pairs and angles that it takes; None if it computes anything else."""
    parameters = tuple(signature(own).parameters)
    tried = (each for names, all_of in _TURNINGS.items() if parameters[: len(names)] == names for each in all_of)
    turning = next((each for each in tried if computes_the_same(own, each)), None)
    return None if turning is None else RotaryByKernel(own, turning, computes_the_same(own, turning, _REST))


@torch.no_grad()
def computes_the_same(own: Embed, turning: Turning, rest: int = 0) -> bool:
    """True if the kernel gives what a model's function gives: in bfloat16 to the bit, in float32 but for roundings.

    rest: channels without angles.
    """
    rows, heads, tokens, dim = _SIZES
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        queries, keys = (_drawn(generator, rows, each, tokens, dim + rest).to(dtype) for each in (heads, 1))
        angles = _drawn_angles(generator, turning, dtype)
        try:
            expected = own(queries, keys, *angles)
        except (TypeError, ValueError, IndexError, RuntimeError):
            return False  # it takes other tensors
        cos, sin = as_read(turning, angles)
        layout = rotary.layout_of(queries, keys, cos, sin, turning)
        assert layout is not None
        found = rotary.turn(queries, keys, cos, sin, layout)
        if not isinstance(expected, tuple) or len(expected) != len(found):
            return False
        if not all(_alike(*pair) for pair in zip(found, expected, strict=True)):
            return False
    return True


def _drawn_angles(generator: torch.Generator, turning: Turning, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Angles of which no two are alike, so that channels of other pairs are told, and angles that are not read."""
    rows, _, tokens, dim = _SIZES
    if turning is COMPLEX:
        return (torch.complex(*_drawn(generator, 2, rows, tokens, dim // 2)),)
    return tuple(_drawn(generator, 2, rows, tokens, dim // turning.share).to(dtype))


def _drawn(generator: torch.Generator, *sizes: int) -> Tensor:
    return torch.randn(*sizes, generator=generator, device="cpu")


def _alike(found: Tensor, expected: Tensor) -> bool:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    return torch.equal(found, expected) or (found.dtype == torch.float32 and torch.allclose(found, expected, atol=1e-5))
