"""Launch sizes of the kernels: queries and slots of a program, its warps and stages, by head size and dtype.

Those of a step of one token in 16 bits were tried on an H100 or an H200. The others, and those of scales that lie in
many tiles, are chosen by what a program takes, compiled ahead of time (docs/results/gpu_resources.md).
"""

from __future__ import annotations

from typing import NamedTuple

from winnow.kernels.formats.pruned import STEP
from winnow.kernels.gpu.forms import Form, Forms
from winnow.kernels.gpu.tiles import NARROWEST, tile_width
from winnow.kernels.native_args import CHANNEL_GROUPS, GROUPED

TILE_BYTES = 16384
"""Bytes of a tile of queries, of keys and of values, at most."""
LARGEST = 64
"""Rows of a tile: what is enough."""
ROOMY = 128
"""Registers of a thread, so that two programs of eight warps fit on a multiprocessor, or four of four."""
STAGES = 3
"""Tiles of keys and of values that are on their way at a time."""
PACKED_STAGES = 2
"""The same of packed slots, for few queries: while one is on its way, another is unpacked."""
WIDE = 128
"""Numbers of a row whose sums leave registers for unpacking, where a thread has no more than ROOMY."""
SHORT_ROW = 512
"""Bits of a packed row, at most, of which 128 are looked at together."""
WARPS, MOST_WARPS = 4, 8
"""Warps of a program, and of one that holds more than their registers."""
CHUNKS_TOGETHER = 16
"""Chunks whose results a program of `join_chunks` has on their way at a time."""


class Sizes(NamedTuple):
    """The part of a launch that a program takes, and its means."""

    asked: int
    """Queries of a program."""
    blocks: int
    """Programs for all queries of a KV head."""
    slots: int
    """Slots that a program looks at together."""
    warps: int
    stages: int
    registers: int | None
    """Registers of a thread, at most; None: as many as the compiler likes."""


def attending(forms: Forms, wide: int, itemsize: int, queries: int) -> Sizes:
    """Sizes of `attend_chunks` for forms of keys and values in rows of `wide` numbers, and queries of a KV head."""
    rows = min(max(TILE_BYTES // (wide * itemsize), NARROWEST), LARGEST)
    asked = min(tile_width(queries), _most_asked(rows, itemsize))
    blocks = -(-queries // asked)
    if asked == NARROWEST and itemsize == 2:
        slots = _slots_of_few(forms, rows, wide)
        if not forms.packed:
            return Sizes(asked, blocks, slots, WARPS, STAGES, None)
        # Four programs fit on a multiprocessor, where neither long heads nor scales of many tiles take the registers.
        registers = ROOMY if wide <= WIDE and not any(map(_is_crowded, (forms.keys, forms.values))) else None
        return Sizes(asked, blocks, slots, WARPS, _stages_of_few(forms), registers)
    # More queries mean more sums and logits than four warps hold; so does what is put in order for products in fp32.
    warps = MOST_WARPS if asked > NARROWEST or forms.packed else WARPS
    registers = ROOMY if warps == MOST_WARPS and not forms.packed else None
    # Each number of 32 bits that is looked up would take a way of its own through shared memory.
    stages = 1 if forms.masked and itemsize > 2 else STAGES
    return Sizes(asked, blocks, _slots(forms, rows, itemsize, asked), warps, stages, registers)


def _slots_of_few(forms: Forms, rows: int, wide: int) -> int:
    """Slots that a program looks at together for a block of queries: what was fastest on an H100 or H200."""
    if not forms.packed:
        return rows
    if forms.masked:
        # A thread has a quarter of a slot's channels.
        return max(STEP, LARGEST * LARGEST // wide)
    both = (forms.keys, forms.values)
    if any(_is_crowded(form) and form.high_bits and form.zeros for form in both):
        return STEP
    return 2 * LARGEST if max(map(_bits_of_row, both)) <= SHORT_ROW else LARGEST


def _is_crowded(form: Form) -> bool:
    """True where scales differ by channel and lie in many tiles, or beside channels that a head kept."""
    return form.scaled_by_channel and bool(form.high_bits or form.channels)


def _stages_of_few(forms: Forms) -> int:
    """Tiles on their way at a time, of packed slots."""
    if not forms.masked:
        return PACKED_STAGES
    # Beside integers that are looked up the compiler would have norms of channels on their way one by one.
    looked_up = any(form.masked and form.bits < 16 for form in (forms.keys, forms.values))
    return 1 if looked_up else STAGES


def _bits_of_row(form: Form) -> int:
    """Bits of a row, twice where they lie in two planes or have zeros: what it takes of registers on its way."""
    return form.numbers * form.bits * (2 if form.high_bits or form.zeros else 1)


def _most_asked(rows: int, itemsize: int) -> int:
    """Queries of a program, at most, of so many that a tile has room for."""
    # Products of fp32 are taken number by number, which needs more registers than tensor cores do.
    return NARROWEST if itemsize > 2 else rows


def _slots(forms: Forms, rows: int, itemsize: int, asked: int) -> int:
    """Slots that a program looks at together, of so many that a tile has room for."""
    both = (forms.keys, forms.values)
    if forms.keys.scaling == GROUPED:
        return STEP
    if forms.masked:
        # Every slot is looked up by four threads; numbers in fp32 go through many registers.
        return rows if itemsize == 2 else NARROWEST
    if any(form.scaling == CHANNEL_GROUPS and form.low_bits == 2 for form in both):
        # Numbers that are put in order go through many registers; so do those with scales for every place in a byte.
        return min(rows, NARROWEST)
    # Beside many sums there is room for fewer numbers on their way to a product.
    return min(rows, STEP) if forms.values.high_bits or (asked > NARROWEST and forms.values.packed) else rows


def asking(queries: int) -> Sizes:
    """Sizes of `prepare_queries`, which looks at no slots."""
    return Sizes(NARROWEST, -(-queries // NARROWEST), 0, WARPS, 1, None)
