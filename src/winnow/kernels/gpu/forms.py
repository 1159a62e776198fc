"""Form of the rows of a part, which a kernel is compiled for, and the numbers that only its call needs.

Parts of all rows lie in different memory; a table holds the addresses, so that one launch serves them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton.language as tl
from torch import Tensor

from winnow.kernels.formats import Part
from winnow.kernels.formats.bits import BLOCK_BYTES, PLANES, row_bytes
from winnow.kernels.formats.draws import Recovery, draws
from winnow.kernels.formats.entries import GROUP
from winnow.kernels.gpu.constants import constant_function
from winnow.kernels.gpu.tiles import power_of_two, tile_width
from winnow.kernels.native_args import CHANNEL_GROUPS, GROUPED, RECOVERIES, RowsArgs, sides

ELEMENTS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}

FIELDS = (
    *("data", "scales", "zeros", "channels", "masks", "stats", "signs", "inverse_norms", "draws", "starts"),
    "seed",
)
"""Numbers of a side in the table: addresses, and a seed. Names are those of `native_args.RowsArgs`."""
WIDTH = len(FIELDS)
LONGEST = 64
"""Bytes of a row that are multiplied in fp32 together: a program has no registers for more on their way there."""
SHORTEST = 32
"""Columns of a tile of integers, at least, where a row has as many: 8 for each of four warps, as tensor cores take
them. Narrower sums are held by several warps at once."""
ALIGNMENT = 16
"""Bytes that a thread may load together."""
RUNS = 4
"""Runs of neighboring channels where slots kept channels of their own, each for a thread: tensor cores take the keys of
a slot from four of them, 8 numbers from each in turn."""
_RECOVERIES: dict[int, Recovery] = {number: name for name, number in RECOVERIES.items()}


@dataclass(frozen=True)
class Plane:
    """Some bits of all numbers of a row, in bytes that lie together, each with as many numbers (`formats/bits.py`)."""

    bits: int
    """16: numbers as they are."""
    signed: bool
    """True if the numbers are in two's complement."""
    worth: int
    """A factor for the numbers of it."""
    first: int
    """Its first byte in a row."""
    size: int
    """Its bytes; numbers where they are as they are."""
    before: int
    """Tiles of the planes before it."""
    even: bool
    """True if all that a block of bytes holds at one place in the byte shares a scale."""
    together: int = 1
    """Numbers of a byte that are columns of one tile."""
    start: int = 0
    """The number of a row that its first byte begins with."""
    runs: int = 1
    """Runs of neighboring numbers that a row is cut into; columns of its tile are 8 numbers of each in turn."""

    @property
    def fields(self) -> int:
        """Numbers of a byte."""
        return 1 if self.bits == 16 else 8 // self.bits

    @property
    def block(self) -> int:
        """Bytes of a whole block."""
        return _block(self.bits)

    @property
    def tiles(self) -> int:
        """Tiles of all its numbers."""
        return self.fields // self.together

    @property
    def wide(self) -> int:
        """Bytes of a tile; numbers where they are as they are."""
        return max(tile_width(self.size), 8 * self.runs) if self.together == 1 else _wide(self.size, self.bits)

    @property
    def columns(self) -> int:
        """Numbers of a row of a tile."""
        return self.wide * self.together


@dataclass(frozen=True)
class Form:
    """The way in which rows are written, as far as a kernel is compiled for it."""

    element: tl.dtype
    """The dtype of numbers as they are, and of scales."""
    bits: int
    """16: numbers as they are, whatever the dtype."""
    numbers: int
    """Numbers of a row: the head's size, fewer where heads kept some channels only. Where slots kept channels of their
    own, the head's size."""
    scaling: int = 0
    """`native_args.UNSCALED`; PER_SLOT; GROUPED: of a channel for 32 slots; CHANNEL_GROUPS: of some channels."""
    group: int = 0
    """Neighboring channels with a scale of their own."""
    zeros: bool = False
    """True if scales have zeros beside them, and numbers no sign."""
    channels: bool = False
    """True if heads kept some channels only."""
    masked: bool = False
    """True if slots kept channels of their own."""
    flat: bool = False
    """True if rows differ in length."""
    kept_bytes: int = 0
    """Bytes from row to row where slots kept channels of their own and rows do not differ in length."""
    sign_bytes: int = 0
    """The same of signs of entries that are gone."""
    statistics: int = 0
    """Numbers of a slot that stand for entries that are gone."""
    signed: bool = False
    """True if entries that are gone have signs of their own."""
    normed: bool = False
    """True if entries that are gone are divided by norms of their channels."""
    recovery: Recovery = "degenerate"
    fill: float = 0.0
    """The constant of a recovery."""
    aligned: bool = True
    """True if rows begin at a multiple of 16 bytes."""

    @property
    def planes(self) -> tuple[Plane, ...]:
        """Planes of the numbers of a row; of rows with channels of their own, those in which they come to lie."""
        if self.masked or self.bits == 16:
            return (Plane(16, True, 1, 0, self.numbers, 0, False, runs=RUNS if self.masked else 1),)
        low, high = PLANES.get(self.bits, (self.bits, 0))
        lower = self._plane(low, not high and not self.zeros, 1, None)
        return (lower, self._plane(high, not self.zeros, 1 << low, lower)) if high else (lower,)

    @property
    def tiled(self) -> tuple[Plane, ...]:
        """The planes as products take them: bytes that are multiplied in fp32 are cut up."""
        if self.bits != 8 or self.masked or self.element != tl.float32:
            return self.planes
        return tuple(self._bytes(start) for start in range(0, self.numbers, LONGEST))

    @property
    def row_length(self) -> int:
        """Bytes from row to row; numbers where they are as they are."""
        return sum(plane.size for plane in self.planes)

    @property
    def groups(self) -> int:
        """Scales of a slot, where channels share them."""
        return -(-self.numbers // self.group) if self.group else 0

    @property
    def scaled_by_channel(self) -> bool:
        """True if a slot's channels differ in their scale."""
        return self.scaling in (GROUPED, CHANNEL_GROUPS)

    @property
    def first_zeros(self) -> int:
        """Tiles of scales, behind which those of zeros come."""
        return sum(plane.tiles for plane in self.tiled)

    @property
    def low_bits(self) -> int:
        """Bits of the first plane of integers."""
        return PLANES.get(self.bits, (self.bits, 0))[0]

    @property
    def high_bits(self) -> int:
        """Bits of the second, or 0."""
        return PLANES.get(self.bits, (self.bits, 0))[1]

    @property
    def random(self) -> bool:
        """True if entries that are gone are drawn."""
        return self.recovery not in ("degenerate", "constant")

    @property
    def packed(self) -> bool:
        """True if numbers are not there as they are, all of them."""
        return self.masked or self.bits != 16

    @property
    def truncated(self) -> bool:
        """True if they are drawn between 0 and a largest one."""
        return self.recovery.startswith("truncated")

    @property
    def exponential(self) -> bool:
        """True if they are drawn from an exponential distribution."""
        return self.recovery.endswith("exponential")

    def _bytes(self, start: int) -> Plane:
        """The numbers of 8 bits from one on, as many as a tile of fp32 has."""
        size = min(LONGEST, self.numbers - start)
        return Plane(8, not self.zeros, 1, start, size, start // LONGEST, True, start=start)

    def _plane(self, bits: int, signed: bool, worth: int, lower: Plane | None) -> Plane:
        first, before = (0, 0) if lower is None else (lower.size, lower.tiles)
        size, together = row_bytes(self.numbers, bits), 1
        if self.element != tl.float32:
            together = min(8 // bits, max(1, SHORTEST // _wide(size, bits)))
        # A block of 4 bits is a group of 32; one of 2 or 1 bits has two groups, and the last one may be cut anywhere.
        even = bits >= 4 or self.group == 64 or self.numbers % 64 == 0
        return Plane(bits, signed, worth, first, size, before, even, together)


@dataclass(frozen=True)
class Forms:
    """The forms of a part's keys and values, and what is done before and after: one compiled kernel."""

    keys: Form
    values: Form
    turned_values: bool = False
    """True if sums of values have to be turned back."""

    @property
    def packed(self) -> bool:
        """True if keys or values are not there as they are."""
        return self.keys.packed or self.values.packed

    @property
    def masked(self) -> bool:
        """True if slots kept channels of their own of keys or values."""
        return self.keys.masked or self.values.masked

    @property
    def in_steps(self) -> bool:
        """True if slots looked at together begin at a multiple: 32 share scales, or the start of their rows."""
        return self.keys.scaling == GROUPED or self.keys.flat or self.values.flat


# Triton before 3.8 takes what stands in a constant for no constant by itself.
@constant_function
def tiled_plane(form: Form, number: int) -> Plane:
    """A plane of a form as products take it, for kernels."""
    return form.tiled[number]


@constant_function
def written_plane(form: Form, number: int) -> Plane:
    """A plane of a form as it is written, for kernels."""
    return form.planes[number]


def forms_of(part: Part) -> Forms:
    """The forms of a part."""
    keys, values = sides(part)
    if values.scaling == GROUPED:
        # What KIVI groups of keys are slots, of values neighboring channels.
        values.scaling, values.scale_group = CHANNEL_GROUPS, GROUP
    return Forms(_form(part, keys, part.key_dim), _form(part, values, part.value_dim), bool(values.rotated))


def dense_form(dtype: torch.dtype, dim: int) -> Form:
    """The form of a whole tensor of rows as they are."""
    return Form(ELEMENTS[dtype], 16, dim)


def table_row(part: Part) -> list[int]:
    """The numbers of FIELDS of its keys, then of its values; 0 for what it has not."""
    both = sides(part)
    for side in both:
        if side.draws:
            side.draws = _draws_there(_RECOVERIES[side.recovery], part.device).data_ptr()
    return [int(getattr(side, name) or 0) for side in both for name in FIELDS]


def dense_row(keys: int, values: int) -> list[int]:
    """The same of keys and values that lie at two addresses as they are."""
    return [address if name == "data" else 0 for address in (keys, values) for name in FIELDS]


def _form(part: Part, side: RowsArgs, dim: int) -> Form:
    return Form(
        ELEMENTS[part.dtype],
        side.bits or 16,
        side.kept if side.channels else dim,
        side.scaling,
        side.scale_group,
        zeros=bool(side.zeros),
        channels=bool(side.channels),
        masked=bool(side.masks),
        flat=bool(side.starts),
        kept_bytes=side.row_bytes if side.masks else 0,
        sign_bytes=side.sign_row_bytes,
        statistics=side.stats_width,
        signed=bool(side.signs),
        normed=bool(side.inverse_norms),
        recovery=_RECOVERIES[side.recovery],
        fill=side.fill,
        aligned=(side.data or 0) % ALIGNMENT == 0,
    )


def _block(bits: int) -> int:
    """Bytes of a whole block of numbers."""
    return BLOCK_BYTES // 2 if bits == 1 else BLOCK_BYTES


def _wide(size: int, bits: int) -> int:
    """Bytes of a tile of a plane of so many: whole blocks, each with columns enough for a product."""
    return max(power_of_two(size), _block(bits))


@cache
def _draws_there(recovery: Recovery, device: torch.device) -> Tensor:
    """The table of a random recovery on a device."""
    return draws(recovery).to(device)
