"""Numbers of slots, as they are or as integers with scales.

Scales are rounded to the model's dtype first, and numbers are quantized with the rounded scale, so that rounding it
costs nothing but a little clipping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from winnow.kernels.formats.bits import INTEGER_BITS, pack_rows, row_bytes, unpack_rows
from winnow.kernels.formats.format import Format
from winnow.kernels.formats.schema import FINITE, Rule, Side, cat_present, take_rows

ENTRY_BITS = (16, *INTEGER_BITS)
"""Bits that a number may have; 16 stands for numbers as they are, whatever the model's dtype."""
GROUP = 32
"""Slots that share a scale per channel (keys), channels that share a scale per slot (values), as in KIVI."""
CHANNEL_GROUPS = (32, 64)
"""Neighboring channels of a slot that may share a scale without a zero."""


@dataclass(frozen=True)
class Entries(Format, name="entries"):
    """Numbers of S slots, T for each, one row after another."""

    data: Tensor
    """[S, T] in the model's dtype where bits is 16, else uint8 [S, row_bytes(T, bits)]. Rows of different length are
    flat, each beginning on a whole byte (or number): [numbers] or uint8 [bytes]."""
    bits: int
    """One of ENTRY_BITS."""
    scales: Tensor | None = None
    """In the model's dtype. [S], or [S, ceil(T / group)]: number = scale·q with signed q, of either sign. With `zeros`:
    number = zero + scale·u, unsigned u."""
    zeros: Tensor | None = None
    """The same shape as scales. Keys: [S / 32, T], one of every channel for 32 slots; values: [S, ceil(T / 32)],
    one of 32 neighboring channels of a slot."""
    group: int = 0
    """One of CHANNEL_GROUPS: neighboring channels of a slot that share a scale and have no zero; 0 for all of them."""

    @property
    def bits_held(self) -> int:
        """Bits that a number takes in `data`."""
        return 8 * self.data.element_size() if self.bits == 16 else self.bits

    def decode(self, rows: Tensor, slots: Tensor, count: int, counts: Tensor | None = None) -> Tensor:
        """Rows of `data` that belong to slots [n] -> fp32 [n, count].

        Rows of different length have counts [n] numbers each; what comes behind them is arbitrary.
        """
        if self.bits == 16:
            return rows.float()
        assert self.scales is not None
        numbers = unpack_rows(rows, count, self.bits, self.zeros is None, counts).float()
        if self.zeros is None and not self.group:
            return numbers * self.scales[slots].float()[:, None]
        if self.zeros is None:
            return numbers * self.scales[slots].float().repeat_interleave(self.group, 1)[:, :count]
        if len(self.zeros) < len(self.data):  # of 32 slots
            return self.zeros[slots // GROUP].float() + self.scales[slots // GROUP].float() * numbers
        scales, zeros = (
            each[slots].float().repeat_interleave(GROUP, 1)[:, :count] for each in (self.scales, self.zeros)
        )
        return zeros + scales * numbers

    def take(self, slots: Tensor, sizes: Tensor | None) -> Entries:
        """Entries of slots [n] as they are written, in that order; not where slots share scales.

        sizes: [S] bytes (or numbers) of every row, where rows differ in length.
        """
        scales, zeros = (None if each is None else each[slots] for each in (self.scales, self.zeros))
        return Entries(take_rows(self.data, slots, sizes), self.bits, scales, zeros, self.group)

    def counted(self, kind: str) -> Iterator[tuple[str, Tensor | None]]:
        """Every tensor beside the kind of bytes that it counts as."""
        yield from ((kind, self.data), ("scales", self.scales), ("scales", self.zeros))

    def rules(self, side: Side, kept: int | None, flat: bool) -> Iterator[Rule]:
        """Schema of the entries of a side; raises ValueError for bits and scales that do not go together.

        kept: T; None where every slot keeps channels of its own.
        flat: True if rows differ in length.
        """
        if self.bits not in ENTRY_BITS:
            raise ValueError(f"{side.name} have {self.bits} bits; known are 16, 8, 6, 4, 3 and 2")
        width = row_bytes(kept, self.bits) if kept is not None and self.bits != 16 else kept
        shape = (None,) if flat else (side.slots, width)
        yield side.rule("entries", self.data, side.dtype if self.bits == 16 else torch.uint8, shape)
        yield from self._scale_rules(side, kept)

    def _scale_rules(self, side: Side, kept: int | None) -> Iterator[Rule]:
        if (self.bits != 16) != (self.scales is not None):
            raise ValueError(f"{side.name} of {self.bits} bits have {'no ' if self.scales is None else ''}scales")
        if self.group and (self.group not in CHANNEL_GROUPS or self.zeros is not None or kept is None):
            raise ValueError(f"{side.name} have a scale for {self.group} channels; 32 or 64 go, without zeros or masks")
        shape: tuple[int, ...] = (side.slots, -(-(kept or 0) // self.group)) if self.group else (side.slots,)
        if self.zeros is not None:
            if kept is None or self.scales is None:
                raise ValueError(f"{side.name} with masks per slot have one scale per slot and no zeros")
            shape = (side.slots // GROUP, kept) if side.name == "keys" else (side.slots, -(-kept // GROUP))
            yield side.rule("zeros", self.zeros, side.dtype, shape, content=(FINITE,))
        if self.scales is not None:
            yield side.rule("scales", self.scales, side.dtype, shape, content=(FINITE,))


# --- encoding ------------------------------------------------------------------------------------------------------

Quantizer = Callable[[Tensor, int, torch.dtype], Entries]
"""Rows [n, T] in fp32, bits below 16, dtype of the scales -> entries."""


def largest_integer(bits: int) -> int:
    """The largest of signed integers that are symmetric about 0."""
    return (1 << (bits - 1)) - 1


def symmetric_scales(numbers: Tensor, bits: int, dtype: torch.dtype, group: int = 0) -> Tensor:
    """Scales of rows [n, T]: [n], or [n, ceil(T / group)] with one for every `group` neighboring columns."""
    grouped = in_groups(numbers, group) if group else numbers
    largest = grouped.abs().amax(-1) if grouped.shape[-1] else numbers.new_zeros(len(numbers))
    return _divided(largest, largest_integer(bits)).to(dtype)


def symmetric(numbers: Tensor, bits: int, dtype: torch.dtype) -> Entries:
    """Rows [n, T] -> signed integers with one scale per row (CoKV App. C.2).

    s = max|x| / q, q = 2^(bits - 1) - 1; stored is clip(round(x / s), -q, q). A row of zeros has scale 0.
    """
    most = largest_integer(bits)
    scales = symmetric_scales(numbers, bits, dtype)
    # In place from here on: packing a prompt is memory traffic.
    integers = (numbers * inverse_scales(scales)[:, None]).round_().clamp_(-most, most)
    return Entries(pack_rows(integers.to(torch.int8), bits), bits, scales)


def symmetric_groups(numbers: Tensor, bits: int, dtype: torch.dtype, group: int) -> Entries:
    """Rows [n, T] -> signed integers, with one scale for every `group` neighboring columns of a row.

    With 8 bits, groups of 32 and float16 the blocks of llama.cpp's q8_0. Scales are those of `symmetric`.
    """
    width = numbers.shape[1]
    most, full = largest_integer(bits), in_groups(numbers, group)
    scales = symmetric_scales(numbers, bits, dtype, group)
    integers = (full * inverse_scales(scales)[..., None]).round_().clamp_(-most, most).to(torch.int8)
    return Entries(pack_rows(integers.flatten(1)[:, :width], bits), bits, scales, group=group)


def grouped_by_slots(numbers: Tensor, bits: int, dtype: torch.dtype) -> Entries:
    """Rows [n, T], n a multiple of 32 -> unsigned integers, scale and zero per column of 32 rows (keys of KIVI)."""
    groups = numbers.view(-1, GROUP, numbers.shape[1])
    scales, zeros = _range(groups.amin(1), groups.amax(1), bits, dtype)
    integers = _unsigned(groups, scales[:, None], zeros[:, None], bits)
    return Entries(pack_rows(integers.view(numbers.shape), bits), bits, scales, zeros)


def grouped_by_channels(numbers: Tensor, bits: int, dtype: torch.dtype) -> Entries:
    """Rows [n, T] -> unsigned integers, scale and zero per 32 neighboring columns of a row (values of KIVI)."""
    count, width = numbers.shape
    # The last group may be short: repeating its own last number changes neither its least nor its largest.
    missing = -width % GROUP
    full = torch.cat([numbers, numbers[:, -1:].expand(count, missing)], 1) if missing else numbers
    groups = full.view(count, -1, GROUP)
    scales, zeros = _range(groups.amin(2), groups.amax(2), bits, dtype)
    integers = _unsigned(groups, scales[..., None], zeros[..., None], bits)
    return Entries(pack_rows(integers.view(count, -1)[:, :width], bits), bits, scales, zeros)


def quantize_flat(rows: Tensor, counts: Tensor, bits: int, dtype: torch.dtype, quantize: Quantizer) -> Entries:
    """Flat rows [numbers], counts[s] for each, with one scale per row; rows of equal length are quantized together."""
    sizes = row_bytes(counts, bits)
    begin, place = counts.cumsum(0) - counts, sizes.cumsum(0) - sizes
    data = torch.empty(int(sizes.sum()), dtype=torch.uint8, device=rows.device)
    scales = torch.empty(len(counts), dtype=dtype, device=rows.device)
    for count in counts.unique().tolist():
        mine = (counts == count).nonzero().flatten()
        numbers = rows[begin[mine, None] + torch.arange(count, device=rows.device)]
        made = quantize(numbers.float(), bits, dtype)
        assert made.scales is not None
        scales[mine] = made.scales
        data[place[mine, None] + torch.arange(row_bytes(count, bits), device=rows.device)] = made.data
    return Entries(data, bits, scales)


def join_entries(pieces: Sequence[Entries]) -> Entries:
    """Entries of consecutive slots as one."""
    return Entries(
        torch.cat([each.data for each in pieces]),
        pieces[0].bits,
        cat_present([each.scales for each in pieces]),
        cat_present([each.zeros for each in pieces]),
        pieces[0].group,
    )


def in_groups(numbers: Tensor, group: int) -> Tensor:
    """Rows [n, T] as [n, ceil(T / group), group]; zeros, which are never the largest, fill up the last group."""
    count, width = numbers.shape
    return torch.nn.functional.pad(numbers, (0, -width % group)).view(count, -(-width // group), group)


def _range(least: Tensor, largest: Tensor, bits: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Scale and zero of groups; the scale of a constant group is 0, and its zero is what it holds."""
    zeros = least.to(dtype)
    return _divided((largest - zeros.float()).clamp_(min=0), (1 << bits) - 1).to(dtype), zeros


def _unsigned(numbers: Tensor, scales: Tensor, zeros: Tensor, bits: int) -> Tensor:
    """round((x - zero) / scale), as uint8."""
    integers = (numbers - zeros.float()).mul_(inverse_scales(scales)).round_()
    return integers.clamp_(0, (1 << bits) - 1).to(torch.uint8)


def _divided(numbers: Tensor, divisor: int) -> Tensor:
    """Quotients, rounded to nearest on every device: a GPU multiplies by the inverse of a number of the host."""
    return numbers / numbers.new_full((), divisor)


def inverse_scales(scales: Tensor) -> Tensor:
    """1 / s in fp32, and 0 where s is 0 or so small that its inverse is infinite."""
    scales = scales.float()
    return torch.where(scales.abs() >= torch.finfo(torch.float32).tiny, 1 / scales, 0.0)
