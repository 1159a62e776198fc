"""Numbers that slots of their own length kept, as integers with a scale for each slot, to the bit as `entries.py` does.

Rows lie one after another, and so do the bytes that they become. Which number a byte holds depends on how many its row
has (`formats/bits.py`), so numbers are read again for every place in the bytes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from winnow.kernels.formats.bits import row_bytes
from winnow.kernels.formats.entries import Entries
from winnow.kernels.formats.packed import PackedRows
from winnow.kernels.gpu.forms import ELEMENTS, Form
from winnow.kernels.gpu.gathering import Chosen, Coordinates
from winnow.kernels.gpu.packing import NUMBERS, WARPS, packed
from winnow.kernels.gpu.tiles import tile_width
from winnow.kernels.gpu.writing import inverse, least_integer, rounded, scales_of


@triton.jit
def pack_rows_of_counts(
    rows, starts, counts, data, places, scales, slots,
    FORM: tl.constexpr, LEAST: tl.constexpr, WIDE: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """data uint8 from places [S] on, and scales [S], of counts [S] numbers that begin at starts [S] of flat rows.

    LEAST: the lowest integer.
    """
    slot = tl.program_id(0).to(tl.int64) * SLOTS + tl.arange(0, SLOTS)
    inside = slot < slots
    count = tl.load(counts + slot, mask=inside, other=0).to(tl.int32)
    first, place = tl.load(starts + slot, mask=inside, other=0), tl.load(places + slot, mask=inside, other=0)
    MOST: tl.constexpr = (1 << (FORM.bits - 1)) - 1
    numbers = _numbers(rows, first, tl.arange(0, WIDE)[None, :], count[:, None])
    held = scales_of(numbers, 1, LEAST, MOST, FORM.element)
    tl.store(scales + slot, held.to(FORM.element), mask=inside)
    factor = inverse(held)
    _store_plane(data, place, rows, first, count, factor, inside, FORM.low_bits, 0, LEAST, MOST, WIDE)
    if FORM.high_bits > 0:
        beyond = place + (count * FORM.low_bits + 7) // 8
        _store_plane(data, beyond, rows, first, count, factor, inside, FORM.high_bits, FORM.low_bits, LEAST, MOST, WIDE)


@triton.jit
def _store_plane(
    data, place, rows, first, count, factor, inside,
    BITS: tl.constexpr, BELOW: tl.constexpr, LEAST: tl.constexpr, MOST: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """BITS bits, above the lowest BELOW, of rounded numbers: `count` [N] of every row, from byte place [N] on."""
    fields: tl.constexpr = 8 // BITS
    bytes_of_block: tl.constexpr = 8 if BITS == 1 else 16
    byte = tl.arange(0, WIDE // fields)[None, :]
    size = ((count * BITS + 7) // 8)[:, None]
    block = byte // bytes_of_block
    # The bytes of the last block, which may be incomplete, are fewer.
    width = tl.minimum(size - block * bytes_of_block, bytes_of_block)
    joined = byte * 0 + size * 0
    for field in tl.static_range(fields):
        number = byte
        if BITS < 8:
            number = block * (bytes_of_block * fields) + field * width + byte % bytes_of_block
        # No byte beyond the row has any.
        numbers = _numbers(rows, first, number, tl.where(byte < size, count[:, None], 0))
        integers = rounded(numbers * factor[:, None], LEAST, MOST)
        joined = joined | (((integers >> BELOW) & ((1 << BITS) - 1)) << (field * BITS))
    mask = inside[:, None] & (byte < size)
    tl.store(data + place[:, None] + byte, joined.to(tl.uint8), mask=mask)


@triton.jit
def _numbers(rows, first, number, count):
    """fp32: numbers of flat rows that begin at first [N]; 0 from `count` on."""
    return tl.load(rows + first[:, None] + number, mask=number < count, other=0.0).to(tl.float32)


def quantized(rows: PackedRows, bits: int, dim: int, signed: bool = False) -> PackedRows:
    """Numbers that rows kept of D channels in `bits` bits, with scales in their dtype; 16 leave them as they are.

    signed: scales are those of `formats/signed.py`, else those of `symmetric`. Where rows differ in length the host
    waits for what they take.
    """
    numbers = rows.entries.data
    if bits == 16:
        return rows
    if rows.counts is not None:
        return rows._replace(entries=_of_counts(numbers, rows.counts, bits, dim, signed))
    slots = torch.arange(len(numbers), device=numbers.device)
    kept = Chosen(numbers[None], torch.zeros_like(slots), slots)
    return rows._replace(entries=packed(kept, Coordinates(None, None, False), bits, 0, signed))


def _of_counts(numbers: Tensor, counts: Tensor, bits: int, dim: int, signed: bool) -> Entries:
    """Flat rows of counts [S] numbers, D at most."""
    sizes = row_bytes(counts, bits)
    ends = sizes.cumsum(0)
    slots, device = len(counts), numbers.device
    data = torch.empty(int(ends[-1]) if slots else 0, dtype=torch.uint8, device=device)
    scales = torch.empty(slots, dtype=numbers.dtype, device=device)
    wide = tile_width(dim)
    together = max(1, NUMBERS // wide)
    if slots:
        pack_rows_of_counts[(triton.cdiv(slots, together),)](
            *(numbers, counts.cumsum(0) - counts, counts, data, ends - sizes, scales, slots),
            FORM=Form(ELEMENTS[numbers.dtype], bits, dim),
            LEAST=least_integer(bits, signed),
            WIDE=wide,
            SLOTS=together,
            num_warps=WARPS,
            enable_fp_fusion=False,
        )
    return Entries(data, bits, scales)
