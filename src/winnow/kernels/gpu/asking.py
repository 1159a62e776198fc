"""Queries in the coordinates in which keys are written: smoothed, turned, and what a subtracted mean adds to logits."""

from __future__ import annotations

import triton
import triton.language as tl

from winnow.kernels.formats import PackedBlock, Part
from winnow.kernels.gpu.queries import load_queries, query_rows
from winnow.kernels.gpu.turning import turned_rows

ASKED_COLUMNS = 4
"""Numbers of a set of queries in the table: row, addresses of means and spreads (or 0), 1 where turned."""


def asks_differently(part: Part) -> bool:
    """True if the queries that ask a part's keys are not the model's own."""
    form = part.keys.form if isinstance(part, PackedBlock) else None
    return form is not None and (form.rotated or form.centered or form.smoothed)


def asking_row(row: int, part: Part) -> list[int]:
    """The numbers of the queries of a row that ask a part."""
    assert isinstance(part, PackedBlock)
    means, spreads = (0 if each is None else each.data_ptr() for each in (part.keys.means, part.keys.spreads))
    return [row, means, spreads, int(part.keys.rotated)]


@triton.jit(do_not_specialize=["group", "tokens"])
def prepare_queries(
    table, queries, row_stride, head_stride, token_stride, asked_queries, bias, heads, group, tokens,
    ELEMENT: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, ASKED: tl.constexpr, COLUMNS: tl.constexpr,
    STEPS: tl.constexpr, FACTOR: tl.constexpr,
):  # fmt: skip
    """asked_queries [A, Hq, Q, D] and bias [A, Hq, Q] of the sets A in the table, from queries [R, Hq, Q, D]."""
    asking, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    asked = tl.program_id(2) * ASKED + tl.arange(0, ASKED)
    present = asked < group * tokens
    line = table + asking * COLUMNS
    row, means, spreads, turned = tl.load(line), tl.load(line + 1), tl.load(line + 2), tl.load(line + 3)
    rows = query_rows(queries, row_stride, head_stride, token_stride, row, head, asked, group, tokens)
    channel = tl.arange(0, WIDE)
    inside = channel < DIM
    query = load_queries(rows, present, channel, inside).to(tl.float32)
    constant = tl.zeros([ASKED], tl.float32)
    if means != 0:
        mean = tl.load(means.to(tl.pointer_type(ELEMENT)) + head * DIM + channel, mask=inside, other=0.0)
        constant += tl.sum(query * mean.to(tl.float32)[None, :], 1)
    if spreads != 0:
        spread = tl.load(spreads.to(tl.pointer_type(ELEMENT)) + head * DIM + channel, mask=inside, other=0.0)
        query *= spread.to(tl.float32)[None, :]
    if turned != 0:
        query = turned_rows(query, ASKED, WIDE, STEPS, FACTOR)
    place = (asking * heads + head) * group * tokens + asked
    mask = present[:, None] & inside[None, :]
    tl.store(asked_queries + place[:, None] * DIM + channel[None, :], query, mask=mask)
    tl.store(bias + place, constant, mask=present)
