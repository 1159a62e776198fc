"""What every kernel reads: an immutable packed prefix, a dense tail, and how logits become weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class PrefixBlock:
    """The kept slots of one sequence in one layer, head after head. Immutable; any number of rows may share it."""

    keys: Tensor
    """[S, D] contiguous: the slots of KV head 0, then of head 1, ..."""
    values: Tensor
    """[S, Dv] contiguous, in the same order."""
    offsets: Tensor
    """[H + 1] int64 on the CPU: head h owns slots offsets[h] to offsets[h + 1]."""
    later_starts: Tensor | None = None
    """[H] int64 on the CPU: head h reads its own slots from later_starts[h] on only; None: every head reads them all.
    Blocks of the same tensors with starts of their own are views: nothing is copied."""

    def __post_init__(self) -> None:
        """Raise ValueError unless the three tensors fit together."""
        offsets = self.offsets
        check_offsets(offsets, len(self.keys))
        if len(self.keys) != len(self.values) or self.keys.ndim != 2 or self.values.ndim != 2:
            raise ValueError("prefix keys [S, D] and values [S, Dv] must be matrices with the same number of slots")
        if not (self.keys.is_contiguous() and self.values.is_contiguous()):
            raise ValueError("prefix tensors must be contiguous")
        if self.keys.dtype != self.values.dtype or self.keys.device != self.values.device:
            raise ValueError(
                f"all keys and values of a layer must agree: {self.values.dtype} on {self.values.device} next to "
                f"{self.keys.dtype} on {self.keys.device}"
            )
        starts = self.later_starts
        if starts is None:
            return
        if starts.dtype != torch.int64 or starts.device.type != "cpu" or starts.shape != self.stops.shape:
            raise ValueError(f"prefix starts must be an int64 CPU tensor [{len(self.stops)}]")
        if not starts.is_contiguous() or bool((starts < offsets[:-1]).any() or (starts > self.stops).any()):
            raise ValueError(f"prefix starts {starts.tolist()} must lie inside the heads of {offsets.tolist()}")

    @property
    def slots(self) -> int:
        """S"""
        return len(self.keys)

    @property
    def dtype(self) -> torch.dtype:
        return self.keys.dtype

    @property
    def device(self) -> torch.device:
        return self.keys.device

    @property
    def key_dim(self) -> int:
        return self.keys.shape[1]

    @property
    def value_dim(self) -> int:
        return self.values.shape[1]

    @property
    def identity(self) -> int:
        """The same for all views of the same memory."""
        return id(self.keys)

    def recover(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Slot indices [...] -> their keys [..., D] and values [..., Dv] in fp32."""
        return self.keys[slots].float(), self.values[slots].float()

    def bytes(self) -> dict[str, int]:
        """Bytes held, by kind."""
        return {"keys": self.keys.nbytes, "values": self.values.nbytes, "indices": self.offsets.nbytes}

    @property
    def starts(self) -> Tensor:
        """[H] int64: the first slot that head h reads."""
        return self.offsets[:-1] if self.later_starts is None else self.later_starts

    @property
    def stops(self) -> Tensor:
        """[H] int64: one past the last slot of head h."""
        return self.offsets[1:]


def check_offsets(offsets: Tensor, slots: int) -> None:
    """Raise ValueError unless offsets [H + 1] are the bounds of heads that share `slots` slots."""
    if offsets.dtype != torch.int64 or offsets.device.type != "cpu" or offsets.ndim != 1 or not len(offsets):
        raise ValueError("prefix offsets must be an int64 CPU tensor [heads + 1]")
    if offsets[0] != 0 or offsets[-1] != slots or bool((offsets.diff() < 0).any()):
        raise ValueError(f"prefix offsets {offsets.tolist()} do not partition {slots} slots")
    if not offsets.is_contiguous():
        raise ValueError("prefix offsets must be contiguous")


def heads_of_slots(offsets: Tensor, slots: Tensor) -> Tensor:
    """[n] int64: the head that owns each of the slot indices [n]."""
    return torch.searchsorted(offsets.to(slots.device), slots, right=True) - 1


class TailSegments(NamedTuple):
    """The tokens of all rows that came after compression, in buffers with room for C tokens."""

    keys: Tensor
    """[R, H, C, D] contiguous."""
    values: Tensor
    """[R, H, C, Dv] contiguous."""
    lengths: Tensor
    """[R] int64 on the CPU: valid tokens per row, those of the current call included. May be updated in place."""


class AttentionSpec(NamedTuple):
    """How the model turns query-key products into weights."""

    scaling: float
    """Factor on q·k."""
    softcap: float | None = None
    """Logits are softcap·tanh(logit / softcap) where the model does so."""
    sinks: Tensor | None = None
    """[Hq] extra logits that take part in the softmax denominator only."""
