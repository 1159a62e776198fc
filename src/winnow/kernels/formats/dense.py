"""Slots as they are: keys and values in the model's dtype."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from winnow.kernels.formats.format import ON_CPU, Format
from winnow.kernels.formats.heads import HeadBounds, check_offsets


@dataclass(frozen=True)
class DenseBlock(HeadBounds, Format, name="dense"):
    """The kept slots of one sequence in one layer, head after head. Immutable; any number of rows may share it."""

    keys: Tensor
    """[S, D] contiguous: the slots of KV head 0, then of head 1, ..."""
    values: Tensor
    """[S, Dv] contiguous, in the same order."""
    offsets: Tensor = field(metadata=ON_CPU)
    """[H + 1] int64 on the CPU: head h owns slots offsets[h] to offsets[h + 1]."""
    later_starts: Tensor | None = field(default=None, metadata=ON_CPU)
    """[H] int64 on the CPU: head h reads its own slots from later_starts[h] on only; None: every head reads them all.
    Blocks of the same tensors with starts of their own are views: nothing is copied."""

    def __post_init__(self) -> None:
        """Raise ValueError unless the tensors fit together."""
        check_offsets(self.offsets, len(self.keys))
        if len(self.keys) != len(self.values) or self.keys.ndim != 2 or self.values.ndim != 2:
            raise ValueError("prefix keys [S, D] and values [S, Dv] must be matrices with the same number of slots")
        if not (self.keys.is_contiguous() and self.values.is_contiguous()):
            raise ValueError("prefix tensors must be contiguous")
        if self.keys.dtype != self.values.dtype or self.keys.device != self.values.device:
            raise ValueError(
                f"all keys and values of a layer must agree: {self.values.dtype} on {self.values.device} next to "
                f"{self.keys.dtype} on {self.keys.device}"
            )
        if self.later_starts is not None:
            self._check_starts(self.later_starts)

    def _check_starts(self, starts: Tensor) -> None:
        if starts.dtype != torch.int64 or starts.device.type != "cpu" or starts.shape != self.stops.shape:
            raise ValueError(f"prefix starts must be an int64 CPU tensor [{len(self.stops)}]")
        if not starts.is_contiguous() or bool((starts < self.offsets[:-1]).any() or (starts > self.stops).any()):
            raise ValueError(f"prefix starts {starts.tolist()} must lie inside the heads of {self.offsets.tolist()}")

    @property
    def slots(self) -> int:
        """S"""
        return len(self.keys)

    @property
    def dtype(self) -> torch.dtype:
        """The model's."""
        return self.keys.dtype

    @property
    def device(self) -> torch.device:
        """The device of keys and values."""
        return self.keys.device

    @property
    def key_dim(self) -> int:
        """D"""
        return self.keys.shape[1]

    @property
    def value_dim(self) -> int:
        """Dv"""
        return self.values.shape[1]

    @property
    def identity(self) -> int:
        """The same for all views of the same memory."""
        return id(self.keys)

    @property
    def starts(self) -> Tensor:
        """[H] int64: the first slot that head h reads."""
        return self.offsets[:-1] if self.later_starts is None else self.later_starts

    def recover(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Slot indices [...] -> their keys [..., D] and values [..., Dv] in fp32."""
        return self.keys[slots].float(), self.values[slots].float()

    def bytes(self) -> dict[str, int]:
        """Bytes held, by kind."""
        return {"keys": self.keys.nbytes, "values": self.values.nbytes, "indices": self.offsets.nbytes}
