"""Blocks of GGUF files: few bits a number, and what they stand for.

Most kinds hold levels in steps of one size. Of the others, the package gguf tells values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.models.levels import Levels

_HALF = 2
"""Bytes of a number of 16 bits."""
_EVERY_BYTE = 0x01010101
_EVERY_BIT = int.from_bytes(bytes(1 << bit for bit in range(8)), "little", signed=True)
_SCALES = 12
"""Bytes that eight steps and eight least values of 6 bits take."""
_Read = tuple[Tensor, int, Tensor, Tensor | None]
"""The parts of `Levels`, in their order."""


class _Kind(NamedTuple):
    numbers: int
    """Numbers of a block."""
    size: int
    """Bytes of a block."""
    read: Callable[[Tensor], _Read]
    """blocks [N, bytes] -> their `Levels`, [N, numbers], and one step and offset, or several, for each block."""


def is_of_levels(kind: str) -> bool:
    """True for kinds of blocks that hold levels, by the name that the package gguf gives them: "Q4_K"."""
    return kind in _KINDS


def bits_of_levels(kind: str) -> int | None:
    """Bits of the kinds whose levels layers keep: 4 or 5, with a step for every 32 numbers, or 6, with one for 16."""
    return _BITS.get(kind)


def levels_of(rows: Tensor, kind: str) -> Levels:
    """rows of whole blocks [R, B], uint8, of a kind that `is_of_levels`."""
    numbers, size, read = _KINDS[kind]
    assert rows.shape[1] % size == 0
    levels, middle, steps, offsets = read(rows.reshape(-1, size))
    width, groups = rows.shape[1] // size * numbers, (len(rows), -1)
    return Levels(
        levels.reshape(-1, width), middle, steps.reshape(groups), None if offsets is None else offsets.reshape(groups)
    )


def _half(blocks: Tensor, start: int) -> Tensor:
    """[N, 1] the number of 16 bits at a byte of each block, in float32."""
    return blocks[:, start : start + _HALF].contiguous().view(torch.float16).float()


def _fields(packed: Tensor, bits: int) -> Tensor:
    """packed [..., B] -> [..., 8/bits, B], uint8: the lowest bits of all bytes, the next bits of all, and so on."""
    # Words are several times as fast as bytes. A copy lies where words may.
    words = packed.clone(memory_format=torch.contiguous_format).view(torch.int32)
    fields = words.new_empty(*words.shape[:-1], 8 // bits, words.shape[-1])
    for field, lowest in enumerate(range(0, 8, bits)):
        torch.bitwise_and(words >> lowest, ((1 << bits) - 1) * _EVERY_BYTE, out=fields[..., field, :])
    return fields.view(torch.uint8)


def _fifth_bits(packed: Tensor) -> Tensor:
    """[N, 4] -> [N, 32]: bits in the order of numbers, to be added to four others."""
    # Eight copies of a byte, of which each keeps a bit of its own.
    kept = (packed.long() * (_EVERY_BYTE << 32 | _EVERY_BYTE)).bitwise_and_(_EVERY_BIT)
    return kept.view(torch.uint8).ne(0).view(torch.uint8) << 4


def _six_bits(packed: Tensor) -> tuple[Tensor, Tensor]:
    """[N, 12] -> eight steps and eight least values of each block [N, 8], in float32: of four, the high bits apart."""
    first, rest = packed.unflatten(1, (3, 4)).split((2, 1), dim=1)
    last = _fields(rest[:, 0], 4) | ((first >> 6) << 4)
    steps, least = torch.cat([first & 63, last], dim=2).float().unbind(1)
    return steps, least


def _q4_0(blocks: Tensor) -> _Read:
    return _fields(blocks[:, 2:], 4), 8, _half(blocks, 0), None


def _q4_1(blocks: Tensor) -> _Read:
    return _fields(blocks[:, 4:], 4), 0, _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: Tensor) -> _Read:
    return _fields(blocks[:, 6:], 4).flatten(1) | _fifth_bits(blocks[:, 2:6]), 16, _half(blocks, 0), None


def _q5_1(blocks: Tensor) -> _Read:
    levels = _fields(blocks[:, 8:], 4).flatten(1) | _fifth_bits(blocks[:, 4:8])
    return levels, 0, _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: Tensor) -> _Read:
    return blocks[:, 2:].view(torch.int8), 0, _half(blocks, 0), None


def _q4_k(blocks: Tensor) -> _Read:
    return _fields(blocks[:, 16:].unflatten(1, (4, 32)), 4), 0, *_steps_of_k(blocks)


def _q5_k(blocks: Tensor) -> _Read:
    low = _fields(blocks[:, 48:].unflatten(1, (4, 32)), 4).flatten(1)
    return low | (_fields(blocks[:, 16:48], 1).flatten(1) << 4), 0, *_steps_of_k(blocks)


def _q6_k(blocks: Tensor) -> _Read:
    low = _fields(blocks[:, :128].unflatten(1, (2, 64)), 4).flatten(1)
    high = _fields(blocks[:, 128:192].unflatten(1, (2, 32)), 2).flatten(1)
    return low | (high << 4), 32, blocks[:, 192:208].view(torch.int8) * _half(blocks, 208), None


def _steps_of_k(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Steps and offsets of 6 bits, times a number for all of a block each."""
    steps, least = _six_bits(blocks[:, 2 * _HALF : 2 * _HALF + _SCALES])
    return steps.mul_(_half(blocks, 0)), least.mul_(_half(blocks, _HALF)).neg_()


_KINDS = {
    "Q4_0": _Kind(32, 18, _q4_0),
    "Q4_1": _Kind(32, 20, _q4_1),
    "Q5_0": _Kind(32, 22, _q5_0),
    "Q5_1": _Kind(32, 24, _q5_1),
    "Q8_0": _Kind(32, 34, _q8_0),
    "Q4_K": _Kind(256, 144, _q4_k),
    "Q5_K": _Kind(256, 176, _q5_k),
    "Q6_K": _Kind(256, 210, _q6_k),
}
_BITS = {"Q4_0": 4, "Q4_1": 4, "Q4_K": 4, "Q5_0": 5, "Q5_1": 5, "Q5_K": 5, "Q6_K": 6}
