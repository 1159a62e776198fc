"""Prefixes of several blocks, and what every prefix is one of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from winnow.kernels.formats.dense import DenseBlock
from winnow.kernels.formats.format import Format
from winnow.kernels.formats.heads import HeadBounds, heads_of_slots
from winnow.kernels.formats.packed import PackedBlock

Part = DenseBlock | PackedBlock
"""Slots of one format."""


@dataclass(frozen=True)
class Parts(HeadBounds, Format, name="parts"):
    """Blocks of different formats that are one prefix: a head's slots are those of all parts, in their order."""

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        """Raise ValueError unless the parts are of the same heads and sizes."""
        sizes = {(len(part.offsets), part.key_dim, part.value_dim, part.dtype, part.device) for part in self.parts}
        if len(sizes) != 1:
            raise ValueError("the parts of a prefix must agree in heads, head sizes, dtype and device")

    @property
    def counts(self) -> Tensor:
        """[H] int64: slots of every head over all parts."""
        return torch.stack([part.stops - part.starts for part in self.parts]).sum(0)

    @property
    def offsets(self) -> Tensor:
        """[H + 1] int64: slots of all parts, head after head."""
        return torch.cat([torch.zeros(1, dtype=torch.int64, device="cpu"), self.counts.cumsum(0)])

    @property
    def identity(self) -> int:
        """The same for all views of the same memory."""
        return id(self.parts[0])

    def bytes(self) -> dict[str, int]:
        """Bytes held, by kind."""
        kinds: Counter[str] = Counter()
        for part in self.parts:
            kinds.update(part.bytes())
        return dict(kinds)

    def recover(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Slot indices [...] -> the keys [..., D] and values [..., Dv] in fp32 that attention takes them for."""
        flat = slots.flatten()
        first = self.parts[0]
        keys = torch.empty(len(flat), first.key_dim, dtype=torch.float32, device=first.device)
        values = torch.empty(len(flat), first.value_dim, dtype=torch.float32, device=first.device)
        for part, mine, places in slots_in_parts(self, flat):
            keys[mine], values[mine] = part.recover(places)
        return keys.view(*slots.shape, first.key_dim), values.view(*slots.shape, first.value_dim)


Block = Part | Parts
"""The prefix of one sequence in one layer, however it is written."""


def parts_of(block: Block) -> tuple[Part, ...]:
    """The blocks of one format each that a prefix consists of."""
    return block.parts if isinstance(block, Parts) else (block,)


def slots_in_parts(block: Block, slots: Tensor) -> Iterator[tuple[Part, Tensor, Tensor]]:
    """Every part of a prefix, which of the prefix's slots [n] are its own [n] bool, and the slots of it that those are.

    Negative slots are nobody's.
    """
    head = heads_of_slots(block.offsets, slots).clamp(min=0)
    inside = slots - block.starts.to(slots.device)[head]
    for part in parts_of(block):
        starts, counts = part.starts.to(slots.device), (part.stops - part.starts).to(slots.device)
        mine = (slots >= 0) & (inside >= 0) & (inside < counts[head])
        yield part, mine, starts[head[mine]] + inside[mine]
        inside = inside - counts[head]
