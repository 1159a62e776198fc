"""Queries of a KV head, numbered g·Q + t: query head g of its group, token t."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def query_rows(queries, asking_stride, head_stride, token_stride, asking, head, asked, group, tokens):
    """Pointers [M] to the queries `asked` [M] of a KV head, whose numbers lie one after another."""
    place = (head * group + asked // tokens) * head_stride + (asked % tokens) * token_stride
    return queries + asking * asking_stride + place


@triton.jit
def load_queries(rows, present, channel, inside):
    """[M, K]: the channels [K] of queries at rows [M]; 0 where not present and not inside."""
    return tl.load(rows[:, None] + channel[None, :], mask=present[:, None] & inside[None, :], other=0.0)
