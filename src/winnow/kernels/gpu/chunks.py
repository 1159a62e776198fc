"""Slots of all rows and heads, cut into chunks: what one program attends to.

Heads of a compressed cache differ in length by orders of magnitude. Work is cut by slots and not by heads, so that one
long head keeps no more than its share of the processors busy.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

SMALLEST, LARGEST, MULTIPLE = 128, 4096, 64
"""Slots of a chunk: at least, at most, and what they are a multiple of. Smaller ones write as many partial results as
they read keys."""
OF_A_PROCESSOR = 2
"""Chunks for every multiprocessor, which are on their way from memory at a time; more have to be joined."""
PACKED_OF_A_PROCESSOR = 4
"""The same of packed slots in products of 16 bits, which keep it busy: while some wait, others unpack."""


class Span(NamedTuple):
    """Slots of one part of one row: every head's run of them."""

    row: int
    entry: int
    """Line of the table of addresses at which a kernel finds the part."""
    asking: int
    """Set of queries that ask it."""
    starts: Tensor
    """[H] int64 on the CPU: the first slot of every head."""
    stops: Tensor
    """[H] int64: one past its last."""
    grows: bool = False
    """True for a tail, whose heads are filled from their first slot on, at every step a bit more."""


COLUMNS = 6
"""Numbers of a chunk in the table that kernels read: entry, asking, row·H + head, first slot, one past the last; of a
tail the head's first slot, else -1."""
ENTRY, ASKING, OWNER, FIRST, STOP, FILLED_FROM = range(COLUMNS)


def chunk_slots(slots: int, chunks: int) -> int:
    """Slots of a chunk, so that there are so many chunks of `slots`, and all are about as long."""
    wanted = -(-slots // chunks)
    return min(max(SMALLEST, -(-wanted // MULTIPLE) * MULTIPLE), LARGEST)


def cut(spans: list[Span], size: int) -> Tensor:
    """int64 [C, COLUMNS] on the CPU: the chunks of some spans, those of a head one after another."""
    lines = [torch.zeros(0, COLUMNS, dtype=torch.int64, device="cpu")]
    for span in spans:
        counts = (span.stops - span.starts + size - 1) // size
        head = torch.repeat_interleave(torch.arange(len(counts), device="cpu"), counts)
        first = span.starts[head] + (torch.arange(len(head), device="cpu") - (counts.cumsum(0) - counts)[head]) * size
        stop = torch.minimum(first + size, span.stops[head])
        owner = span.row * len(counts) + head
        entry, asking = torch.full_like(head, span.entry), torch.full_like(head, span.asking)
        filled_from = span.starts[head] if span.grows else torch.full_like(head, -1)
        lines.append(torch.stack([entry, asking, owner, first, stop, filled_from], dim=1))
    return torch.cat(lines)
