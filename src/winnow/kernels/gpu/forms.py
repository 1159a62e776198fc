"""Form of the rows of a part, which a kernel is compiled for, and the numbers that only its call needs.

Parts of all rows lie in different memory; a table holds the addresses, so that one launch serves them all.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from winnow.kernels.formats import Part
from winnow.kernels.native_args import RowsArgs, sides

ELEMENTS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}

FIELDS = (
    *("data", "scales", "zeros", "channels", "masks", "stats", "signs", "inverse_norms", "draws", "starts"),
    *("kept", "row_bytes", "sign_row_bytes", "stats_width", "seed"),
)
"""Numbers of a side in the table: addresses, then sizes. Names are those of `native_args.RowsArgs`."""
WIDTH = len(FIELDS)


@dataclass(frozen=True)
class Form:
    """The way in which rows are written, as far as a kernel is compiled for it."""

    element: tl.dtype
    """The dtype of numbers as they are, and of scales."""
    bits: int
    """16: numbers as they are, whatever the dtype."""
    scaling: int = 0
    """`native_args.UNSCALED` to `CHANNEL_GROUPS`."""
    group: int = 0
    """Neighboring channels with a scale of their own."""
    channels: bool = False
    """True if heads kept some channels only."""
    masked: bool = False
    """True if slots kept channels of their own."""
    flat: bool = False
    """True if rows differ in length."""
    signed: bool = False
    """True if entries that are gone have signs of their own."""
    normed: bool = False
    """True if entries that are gone are divided by norms of their channels."""
    recovery: int = 0
    """One of `native_args.RECOVERIES`."""
    fill: float = 0.0
    """The constant of a recovery."""


@dataclass(frozen=True)
class Forms:
    """The forms of a part's keys and values, and what is done before and after: one compiled kernel."""

    keys: Form
    values: Form
    turned_values: bool = False
    """True if sums of values have to be turned back."""


def forms_of(part: Part) -> Forms:
    """The forms of a part."""
    keys, values = sides(part)
    return Forms(_form(part, keys), _form(part, values), bool(values.rotated))


def table_row(part: Part) -> list[int]:
    """The numbers of FIELDS of its keys, then of its values; 0 for what it has not."""
    return [int(getattr(side, name) or 0) for side in sides(part) for name in FIELDS]


def dense_row(keys: int, values: int) -> list[int]:
    """The same of keys and values that lie at two addresses as they are."""
    return [address if name == "data" else 0 for address in (keys, values) for name in FIELDS]


def _form(part: Part, side: RowsArgs) -> Form:
    return Form(
        ELEMENTS[part.dtype],
        side.bits or 16,
        side.scaling,
        side.scale_group,
        channels=bool(side.channels),
        masked=bool(side.masks),
        flat=bool(side.starts),
        signed=bool(side.signs),
        normed=bool(side.inverse_norms),
        recovery=side.recovery,
        fill=side.fill,
    )
