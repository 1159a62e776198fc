"""Attention that the last queries of a prompt pay to its keys, without a matrix of it.

Two passes over the keys: the largest logit and the sum of weights of every query in chunks of keys, and those joined;
then what every key is paid, in whatever numbers (`paying.py`). Keys are read once in a pass for all queries of a tile,
and no head of them is repeated. `score/window.py` is the definition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from winnow.kernels.gpu.forms import ELEMENTS
from winnow.kernels.gpu.paying import SHARES, pay_keys, pay_keys_most
from winnow.kernels.gpu.precision import product_dtype
from winnow.kernels.gpu.softmax import finite
from winnow.kernels.gpu.tiles import NARROWEST, tile_width
from winnow.kernels.gpu.window_tiles import keys_of, logits_of, queries_of_tile

SMALLEST_CHUNK = 512
"""Keys of a program of the first pass, at least: what it leaves takes a hundredth of what it read."""
PROGRAMS = 2048
"""Programs of the first pass at most, so that a prompt all of whose queries are asked leaves no more either; enough to
keep every processor busy several times."""


class Launch(NamedTuple):
    """Sizes of a launch."""

    rows: int
    """Queries of a tile, at most."""
    keys: int
    """Keys that a program looks at together."""
    warps: int


LAUNCHES = {
    (16, 128): Launch(64, 64, 4),
    (16, 256): Launch(32, 64, 8),
    (32, 128): Launch(32, 32, 8),
    (32, 256): Launch(16, 32, 8),
}
"""By bits of what is multiplied and the width of a head, at most: what registers hold. Products of fp32 are no tensor
core's, and take more of them."""
STAGES = 2


@dataclass(frozen=True)
class Asked:
    """Queries and keys of one layer of one sequence, and which of them meet."""

    queries: Tensor
    """[Hq, w, D] of the last tokens."""
    keys: Tensor
    """[H, N, D], in the same dtype or another."""
    scaling: float
    softcap: float | None
    sinks: Tensor | None
    """[Hq]"""
    absent: Tensor | None
    """[H, N] bool"""
    visible: int
    """First keys that are attended to at all; a query sees none that come after its own."""


@triton.jit(do_not_specialize=["visible", "first", "window", "chunk_keys"])
def normalize_chunks(
    queries, keys, absent, maxima, totals, query_stride, query_token_stride, key_stride, key_token_stride,
    scaling, softcap, length, visible, first, window, group, chunk_keys,
    ABSENT: tl.constexpr, CAPPED: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr,
    HEADS: tl.constexpr, WINDOW: tl.constexpr, KEYS: tl.constexpr,
    PRODUCT: tl.constexpr,
):  # fmt: skip
    """maxima and totals [C, H, G·w] of chunks of keys."""
    # Tiles of a whole prompt's queries are more than the other axes of a grid have room for.
    tile, head, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tiles = tl.cdiv(window, WINDOW)
    query, number, token, present = queries_of_tile(
        queries, query_stride, query_token_stride, head, tile // tiles * HEADS, group, (tile % tiles * WINDOW, window),
        DIM, WIDE, HEADS, WINDOW,
    )  # fmt: skip
    maximum = tl.full([HEADS * WINDOW], float("-inf"), tl.float32)
    total = tl.zeros([HEADS * WINDOW], tl.float32)
    # No query of the tile sees a key beyond its last one's.
    stop = tl.minimum(tl.minimum(chunk * chunk_keys + chunk_keys, visible), first + tile % tiles * WINDOW + WINDOW)
    for begin in range(chunk * chunk_keys, stop, KEYS):
        tokens = begin + tl.arange(0, KEYS)
        inside = tokens < visible
        rows = keys_of(keys, head, key_stride, key_token_stride, tokens, inside, DIM, WIDE)
        logits = logits_of(
            query, rows, absent, head, length, tokens, inside, first + token, scaling, softcap,
            ABSENT, CAPPED, PRODUCT,
        )  # fmt: skip
        larger = tl.maximum(maximum, tl.max(logits, 1))
        reference = finite(larger)
        total = total * tl.exp(maximum - reference) + tl.sum(tl.exp(logits - reference[:, None]), 1)
        maximum = larger
    line = (chunk * tl.num_programs(1) + head).to(tl.int64) * group * window + number
    tl.store(maxima + line, maximum, mask=present)
    tl.store(totals + line, total, mask=present)


@triton.jit(do_not_specialize=["chunks", "window"])
def join_normalizers(maxima, totals, sinks, chunks, rows, window, SINKS: tl.constexpr, BLOCK: tl.constexpr):
    """The first line of maxima and totals [C, rows] becomes the largest logit and the sum of weights of every row."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    present = row < rows
    maximum = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    if SINKS:
        # A logit without a key.
        maximum = tl.load(sinks + row // window, mask=present, other=0.0)
        total += 1.0
    for chunk in range(chunks):
        place = chunk * rows + row
        its = tl.load(maxima + place, mask=present, other=float("-inf"))
        larger = tl.maximum(maximum, its)
        reference = finite(larger)
        sums = tl.load(totals + place, mask=present, other=0.0)
        total = total * tl.exp(maximum - reference) + sums * tl.exp(its - reference)
        maximum = larger
    tl.store(maxima + row, finite(maximum), mask=present)
    tl.store(totals + row, tl.where(total == 0.0, 1.0, total), mask=present)


class Normalized:
    """Queries of a window, of which the largest logits and the sums of weights are known."""

    def __init__(self, asked: Asked) -> None:
        """Takes the first pass over the keys."""
        queries, keys = (each if each.stride(-1) == 1 else each.contiguous() for each in (asked.queries, asked.keys))
        heads, length, dim = keys.shape
        group, window = queries.shape[0] // heads, queries.shape[1]
        absent = None if asked.absent is None else asked.absent.contiguous().view(torch.uint8)
        product, wide = product_dtype(queries.dtype, keys.dtype), tile_width(dim)
        launch = LAUNCHES[(8 * product.itemsize, max(128, wide))]
        tokens, members = _tile_sizes(window, group, launch.rows)
        tiles = triton.cdiv(group, members) * triton.cdiv(window, tokens)
        most_keys = triton.cdiv(asked.visible * heads * tiles, PROGRAMS * launch.keys) * launch.keys
        chunk_keys = max(SMALLEST_CHUNK, most_keys)
        chunks = max(1, triton.cdiv(asked.visible, chunk_keys))
        maxima, totals = torch.empty(2, chunks, heads * group * window, dtype=torch.float32, device=keys.device)
        self._heads, self._group, self._keys_together = heads, group, launch.keys
        self._there = (queries, keys, absent, maxima, totals)
        self._strides = (*queries.stride()[:2], *keys.stride()[:2])
        self._facts = (asked.scaling, asked.softcap or 0.0, length, asked.visible, length - window, window, group)
        self._compiled: dict[str, Any] = {
            "ABSENT": absent is not None,
            "CAPPED": asked.softcap is not None,
            "DIM": dim,
            "WIDE": wide,
            "HEADS": members,
            "WINDOW": tokens,
            "KEYS": launch.keys,
            "PRODUCT": ELEMENTS[product],
            "num_warps": launch.warps,
            "num_stages": STAGES,
        }
        sinks = None if asked.sinks is None else asked.sinks.detach().to(keys.device, torch.float32).contiguous()
        number = heads * group * window
        with torch.cuda.device_of(keys):  # Triton launches on the current one
            normalize_chunks[(tiles, heads, chunks)](
                *self._there, *self._strides, *self._facts, chunk_keys, **self._compiled
            )
            join_normalizers[(triton.cdiv(number, 128),)](
                *(maxima, totals, sinks, chunks, number, window), SINKS=sinks is not None, BLOCK=128
            )

    def paid(self, keys: int, what: int = SHARES, since: int = 0, weights: Tensor | None = None) -> Tensor:
        """fp32 [H, G, keys]: what the queries from number `since` on pay to the first `keys` keys.

        what: SHARES, SQUARES, ENTROPY or LARGEST of `paying.py`. weights: fp32 [w], factors of the queries' shares.
        """
        paid = torch.empty(self._heads, self._group, keys, dtype=torch.float32, device=self._there[1].device)
        grid = (triton.cdiv(keys, self._keys_together), self._heads)
        if keys:
            with torch.cuda.device_of(paid):
                pay_keys[grid](
                    *(*self._there, weights, paid, *self._strides, *self._facts, since, keys),
                    WHAT=what, WEIGHED=weights is not None, **self._compiled,
                )  # fmt: skip
        return paid

    def paid_most(self, keys: int, since: int = 0, columns: Tensor | None = None) -> Tensor:
        """fp32 [keys]: sums over the tokens from number `since` on, each by the query head that pays a key most.

        columns: int32 [H, keys], which of a head's keys each of them is, -1 for none; None: the first keys of a head.
        """
        paid = torch.empty(keys, dtype=torch.float32, device=self._there[1].device)
        if keys:
            with torch.cuda.device_of(paid):
                pay_keys_most[(triton.cdiv(keys, self._keys_together),)](
                    *(*self._there, columns, paid, *self._strides, *self._facts, since, keys, self._heads),
                    LISTED=columns is not None, **self._compiled,
                )  # fmt: skip
        return paid


def _tile_sizes(window: int, group: int, rows: int) -> tuple[int, int]:
    """Tokens and query heads of a tile of so many rows at most, powers of two."""
    tokens = min(triton.next_power_of_2(window), rows)
    members = min(triton.next_power_of_2(group), rows // tokens)
    return tokens, max(members, NARROWEST // tokens, 1)
