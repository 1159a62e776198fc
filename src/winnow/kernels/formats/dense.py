"""Slots as they are: keys and values in the model's dtype."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from winnow.kernels.formats.format import ON_CPU, Format
from winnow.kernels.formats.heads import CPU, HeadBounds, offsets_rule
from winnow.kernels.formats.schema import Demand, Rule, Side, check, check_sizes


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
        check(self.rules())
        check_sizes(self.dtype, self.key_dim, self.value_dim)

    def rules(self) -> Iterator[Rule]:
        """Schema of the block; see `schema.check`."""
        yield offsets_rule(self.offsets, self.slots)
        for name, rows in (("keys", self.keys), ("values", self.values)):
            side = Side(name, self.slots, len(self.stops), self.dtype, self.device)
            yield side.rule("entries", rows, side.dtype, (side.slots, None))
        if self.later_starts is not None:
            inside = Demand(
                f"must lie inside the heads of {self.offsets.tolist()}",
                lambda starts: not bool(((starts < self.offsets[:-1]) | (starts > self.stops)).any()),
            )
            yield Rule("prefix starts", self.later_starts, torch.int64, (len(self.stops),), CPU, (inside,))

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
