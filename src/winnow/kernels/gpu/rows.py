"""Rows of slots, in whatever form they are written, and products with them.

Keys and values have two functions each, between which no form is known: `prepared` and `products` for keys, `nothing`,
`added` and `written` for values. What they hand on is theirs: a tuple of tiles, as many as the form needs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from winnow.kernels.gpu.forms import FIELDS

DATA: tl.constexpr = tl.constexpr(FIELDS.index("data"))
ROW_BYTES: tl.constexpr = tl.constexpr(FIELDS.index("row_bytes"))


@triton.jit
def rows_at(table, slots, inside, FORM: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr):
    """[N, WIDE] of the form's element: rows of slots [N] as they are; 0 beyond DIM and where not inside."""
    data = tl.multiple_of(tl.load(table + DATA).to(tl.pointer_type(FORM.element)), 16)
    channel = tl.arange(0, WIDE)
    mask = inside[:, None] & (channel < DIM)[None, :]
    return tl.load(data + slots[:, None] * DIM + channel[None, :], mask=mask, other=0.0)
