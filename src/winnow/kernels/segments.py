"""Input of kernels beside prefixes: a dense tail, a ring, and the way from logits to weights."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class TailSegments(NamedTuple):
    """The tokens of all rows that came after compression, in buffers with room for C tokens."""

    keys: Tensor
    """[R, H, C, D] contiguous."""
    values: Tensor
    """[R, H, C, Dv] contiguous."""
    lengths: Tensor
    """[R] int64 on the CPU: valid tokens per row, those of the current call included. May be updated in place."""
    lengths_there: Tensor | None = None
    """The same on the device of the keys, updated in place as well; None: it is sent there at every step."""


class Ring(NamedTuple):
    """Buffers of R rows in which the token t of a row lies in column t % W."""

    columns: TailSegments
    """The buffers, of which rows attend to as many columns as their lengths say."""
    seen: Tensor
    """[R] int64: tokens of all times, which grow in place as lengths do."""
    spare_keys: Tensor
    """[R, H, 1, D]: what the latest token took the place of."""
    spare_values: Tensor
    """[R, H, 1, Dv]"""
    window: int


class AttentionSpec(NamedTuple):
    """The model's way from query-key products to weights."""

    scaling: float
    """Factor on q·k."""
    softcap: float | None = None
    """Logits are softcap·tanh(logit / softcap) where the model does so."""
    sinks: Tensor | None = None
    """[Hq] the model's own: extra logits in the softmax denominator. A method's `sinks` are first tokens."""

    def same_as(self, other: AttentionSpec) -> bool:
        """True if scaling and soft-capping agree, and the sinks are one tensor: the model's own."""
        return (self.scaling, self.softcap) == (other.scaling, other.softcap) and self.sinks is other.sinks
