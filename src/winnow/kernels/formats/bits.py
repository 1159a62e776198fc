"""Rows of 8, 4 and 2 bit numbers, and of flags, in bytes.

A row of T numbers takes ceil(T·bits / 8) bytes. Numbers of 4 bits come in blocks of 32, 16 bytes each: byte i holds
number i in its low half and number i + 16 in its high half, so that one load of 16 bytes gives two vectors of
neighbors by a mask and a shift. Numbers of 2 bits come in blocks of 64: byte i holds numbers i, i + 16, i + 32 and
i + 48, the first lowest. The last, incomplete block of m numbers has h = ceil(m·bits / 8) bytes and h in place of 16.
Signed numbers are in two's complement. Flag j of a row is bit j % 8 of its byte j // 8.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

BLOCK_BYTES = 16
INTEGER_BITS = (8, 4, 2)
"""Bits that an integer may have."""


def row_bytes(numbers: int, bits: int) -> int:
    """Bytes of a row."""
    return -(-numbers * bits // 8)


def pack_rows(numbers: Tensor, bits: int) -> Tensor:
    """Integers [..., T] -> uint8 [..., row_bytes(T)]; each must fit into `bits` bits, signed or not."""
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
    if bits == 8:
        numbers = packed.to(torch.int16)
    else:
        if counts is None:
            index, shift = (each.to(packed.device) for each in _places(count, bits))
            numbers = packed[..., index]
        else:
            index, shift = _places_of(counts[..., None], torch.arange(count, device=packed.device), bits)
            numbers = packed.gather(-1, index.clamp(max=max(packed.shape[-1] - 1, 0)))
        numbers = (numbers >> shift).to(torch.int16)
        numbers &= (1 << bits) - 1
    return torch.where(numbers >= 1 << (bits - 1), numbers - (1 << bits), numbers) if signed else numbers


@cache
def _places(count: int, bits: int) -> tuple[Tensor, Tensor]:
    """Byte of every number of a row, int64 [T], and its shift in there, uint8 [T]."""
    return _places_of(torch.tensor(count), torch.arange(count), bits)


def _places_of(count: Tensor, number: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """The same for given numbers of rows with `count` numbers."""
    per_byte = 8 // bits
    block = number // (BLOCK_BYTES * per_byte)
    first = block * BLOCK_BYTES * per_byte
    size = (count - first).clamp(min=1, max=BLOCK_BYTES * per_byte)
    width = -(-size // per_byte)
    inside = number - first
    return block * BLOCK_BYTES + inside % width, (inside // width % per_byte * bits).to(torch.uint8)


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
