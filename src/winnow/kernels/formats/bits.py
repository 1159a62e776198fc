"""Rows of 8, 6, 4, 3 and 2 bit numbers, and of flags, in bytes.

A row of T numbers takes ceil(T·bits / 8) bytes. Numbers of 4 bits come in blocks of 32, 16 bytes each: byte i holds
number i in its low half and number i + 16 in its high half, so that one load of 16 bytes gives two vectors of
neighbors by a mask and a shift. Numbers of 2 bits come in blocks of 64: byte i holds numbers i, i + 16, i + 32 and
i + 48, the first lowest. The last, incomplete block of m numbers has h = ceil(m·bits / 8) bytes and h in place of 16.

Widths that no byte is a multiple of lie in two planes, a row each: of the low 4 bits of all numbers and then of their
high 2 (6 bits), or of the low 2 and then the high 1 (3 bits). Numbers of 1 bit come in blocks of 64, 8 bytes each, h in
place of 8. So every plane is unpacked by the same masks and shifts, and no number is ever cut in two, as it would be
with 8 numbers of 3 bits in 3 bytes; a row takes at most a byte more.

Signed numbers are in two's complement. Flag j of a row is bit j % 8 of its byte j // 8.
"""

from __future__ import annotations

from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

BLOCK_BYTES = 16
BLOCK_NUMBERS = 64
"""Numbers of a block, at most."""
INTEGER_BITS = (8, 6, 4, 3, 2)
"""Bits that an integer may have."""
PLANES = {6: (4, 2), 3: (2, 1)}
"""Low and high bits of numbers that lie in two planes."""
Count = TypeVar("Count", int, Tensor)


def row_bytes(numbers: Count, bits: int) -> Count:
    """Bytes of a row of so many numbers, or of each of several."""
    low, high = PLANES.get(bits, (bits, 0))
    return -(-numbers * low // 8) + -(-numbers * high // 8)


def pack_rows(numbers: Tensor, bits: int) -> Tensor:
    """Integers [..., T] -> uint8 [..., row_bytes(T)]; each must fit into `bits` bits, signed or not."""
    if bits in PLANES:
        low, high = PLANES[bits]
        return torch.cat([pack_rows(numbers & (1 << low) - 1, low), pack_rows(numbers >> low, high)], -1)
    if bits == 8:
        return numbers.to(torch.int16).bitwise_and(255).to(torch.uint8)
    count = numbers.shape[-1]
    index, shift = _places(count, bits)
    small = numbers.to(torch.uint8).bitwise_and((1 << bits) - 1) << shift.to(numbers.device)
    packed = small.new_zeros(*numbers.shape[:-1], row_bytes(count, bits))
    # Numbers of one byte use different bits of it, so their sum is their union.
    return packed.index_add_(-1, index.to(numbers.device), small)


def unpack_rows(packed: Tensor, count: int, bits: int, signed: bool, counts: Tensor | None = None) -> Tensor:
    """uint8 [..., row_bytes(count)] -> int16 [..., count].

    Where rows differ in length, `counts` [...] tells how many numbers each has; what comes behind them is arbitrary.
    """
    if bits in PLANES:
        low, high = PLANES[bits]
        # Where rows differ in length, so do the places at which their second planes begin.
        first: int | Tensor = row_bytes(count, low) if counts is None else row_bytes(counts[..., None], low)
        numbers = _unpack_plane(packed, count, low, counts)
        numbers |= _unpack_plane(packed, count, high, counts, first) << low
    else:
        numbers = _unpack_plane(packed, count, bits, counts)
    return torch.where(numbers >= 1 << (bits - 1), numbers - (1 << bits), numbers) if signed else numbers


def _unpack_plane(packed: Tensor, count: int, bits: int, counts: Tensor | None, first: int | Tensor = 0) -> Tensor:
    """Unsigned numbers int16 [..., count] from the byte `first` of every row on."""
    if bits == 8:
        return packed.to(torch.int16)
    if counts is None:
        index, shift = (each.to(packed.device) for each in _places(count, bits))
        numbers = packed[..., index + first]
    else:
        index, shift = _places_of(counts[..., None], torch.arange(count, device=packed.device), bits)
        numbers = packed.gather(-1, (index + first).clamp(max=max(packed.shape[-1] - 1, 0)))
    return (numbers >> shift).to(torch.int16) & (1 << bits) - 1


@cache
def _places(count: int, bits: int) -> tuple[Tensor, Tensor]:
    """Byte of every number of a row, int64 [T], and its shift in there, uint8 [T]."""
    return _places_of(torch.tensor(count, device="cpu"), torch.arange(count, device="cpu"), bits)


def _places_of(count: Tensor, number: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """The same for given numbers of rows with `count` numbers."""
    per_byte = 8 // bits
    whole = min(BLOCK_BYTES * per_byte, BLOCK_NUMBERS)
    block = number // whole
    first = block * whole
    size = (count - first).clamp(min=1, max=whole)
    width = -(-size // per_byte)
    inside = number - first
    return block * (whole // per_byte) + inside % width, (inside // width % per_byte * bits).to(torch.uint8)


def pack_flags(flags: Tensor) -> Tensor:
    """bool [n, m] -> uint8 [n, ceil(m / 8)]."""
    count = row_bytes(flags.shape[1], 1)
    padded = torch.nn.functional.pad(flags, (0, 8 * count - flags.shape[1]))
    full = padded.view(len(flags), count, 8).to(torch.uint8)
    weights = torch.tensor([1 << bit for bit in range(8)], dtype=torch.uint8, device=flags.device)
    return (full * weights).sum(-1, dtype=torch.uint8)


def unpack_flags(packed: Tensor, count: int) -> Tensor:
    """uint8 [n, bytes] -> bool [n, count]."""
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed[..., None] >> shifts) & 1).flatten(-2)[..., :count].bool()
