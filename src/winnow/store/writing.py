"""From what stays of keys or values to the tensors of a packed block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.kernels.bits import row_bytes
from winnow.kernels.packed import STEP, Entries, Pruned
from winnow.store.channels import Kept

Quantiser = Callable[[Tensor, int, torch.dtype], Entries]
"""Rows [n, T] in fp32, bits, dtype of the scales -> entries."""


class Written(NamedTuple):
    """Keys or values of some slots, packed."""

    entries: Entries
    pruned: Pruned | None
    counts: Tensor | None
    """[S] int64, where slots kept different numbers of channels."""
    channels: Tensor | None


def write(kept: Kept, bits: int, dtype: torch.dtype, quantise: Quantiser) -> Written:
    """What stays of a matrix, in `bits` bits."""
    if bits == 16:
        entries = Entries(kept.rows, 16)
    elif kept.counts is None:
        entries = quantise(kept.rows.float(), bits, dtype)
    else:
        entries = _write_varying(kept.rows, kept.counts, bits, dtype, quantise)
    return Written(entries, kept.pruned, kept.counts, kept.channels)


def joined(pieces: Sequence[Written], dim: int) -> Written:
    """Consecutive slots, packed in pieces, as one; D tells how many channels are gone."""
    first = pieces[0]
    entries = Entries(
        torch.cat([each.entries.data for each in pieces]),
        first.entries.bits,
        _cat([each.entries.scales for each in pieces]),
        _cat([each.entries.zeros for each in pieces]),
    )
    counts = _cat([each.counts for each in pieces])
    return Written(entries, _joined_pruned(pieces, entries, counts, dim), counts, first.channels)


def _joined_pruned(pieces: Sequence[Written], entries: Entries, counts: Tensor | None, dim: int) -> Pruned | None:
    found = [each.pruned for each in pieces if each.pruned is not None]
    if not found:
        return None
    signs = _cat([each.signs for each in found])
    starts = None if counts is None else _starts(entries, signs is not None, counts, dim)
    return replace(
        found[0],
        masks=torch.cat([each.masks for each in found]),
        stats=torch.cat([each.stats for each in found]),
        signs=signs,
        starts=starts,
    )


def _starts(entries: Entries, signed: bool, counts: Tensor, dim: int) -> Tensor:
    """int64 [ceil(S / 32), 2]: where the rows of every 32nd slot begin, in bytes of numbers and of signs."""
    width = 8 * entries.data.element_size() if entries.bits == 16 else entries.bits
    numbers = -(-counts * width // 8)
    signs = -(-(dim - counts) // 8) if signed else torch.zeros_like(counts)
    sizes = torch.stack([numbers, signs], 1)
    return (sizes.cumsum(0) - sizes)[::STEP].clone()


def _write_varying(rows: Tensor, counts: Tensor, bits: int, dtype: torch.dtype, quantise: Quantiser) -> Entries:
    """Flat rows [n] of counts[s] numbers each; rows of equal length are quantised together."""
    sizes = -(-counts * bits // 8)
    begin, place = counts.cumsum(0) - counts, sizes.cumsum(0) - sizes
    data = torch.empty(int(sizes.sum()), dtype=torch.uint8, device=rows.device)
    scales = torch.empty(len(counts), dtype=dtype, device=rows.device)
    for count in counts.unique().tolist():
        mine = (counts == count).nonzero().flatten()
        numbers = rows[begin[mine, None] + torch.arange(count, device=rows.device)]
        made = quantise(numbers.float(), bits, dtype)
        assert made.scales is not None
        scales[mine] = made.scales
        data[place[mine, None] + torch.arange(row_bytes(count, bits), device=rows.device)] = made.data
    return Entries(data, bits, scales)


def _cat(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """All of them together; None where they are."""
    present = [tensor for tensor in tensors if tensor is not None]
    return torch.cat(present) if present else None
