"""Rotary embedding of queries and keys with the compiled kernel, in one pass."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.kernels import native
from winnow.kernels.native_args import DTYPES, POINTS, Points, RotaryArgs, RotaryRows
from winnow.kernels.recording import LibraryCall, this_thread
from winnow.kernels.strides import Shape, shape_of


class Turning(NamedTuple):
    """The channels that are a point together, and the angles that turn it."""

    share: int = 1
    """Channels that have an angle together, 1 or 2."""
    points: Points = "halves"
    """Channels half a head apart; or neighbors, for which the first half of the angles is read, one for each point; or
    complex numbers, the angles, too: their real and imaginary parts beside each other, in fp32."""


HALVES = Turning()
"""Points are channels half a head apart, each with an angle of its own."""
INTERLEAVED = Turning(points="interleaved")
COMPLEX = Turning(points="complex")


def layout_of(queries: Tensor, keys: Tensor, cos: Tensor, sin: Tensor, turning: Turning = HALVES) -> RotaryArgs | None:
    """The kernel's arguments for tensors that lie as these, without addresses; None where it does not read them.

    Channels for which there are no angles are not turned.
    """
    dtype = queries.dtype
    of_angles = torch.float32 if turning.points == "complex" else dtype
    if keys.dtype is not dtype or cos.dtype is not of_angles or sin.dtype is not of_angles:
        return None
    if not (
        queries.is_cpu and keys.is_cpu and cos.is_cpu and sin.is_cpu and cos.is_contiguous() and sin.is_contiguous()
    ):
        return None
    shapes = (shape_of(queries), shape_of(keys))
    return _layout(*shapes, cos.shape, sin.shape, dtype, turning)


@lru_cache(maxsize=64)
def _layout(
    queries: Shape, keys: Shape, cos: torch.Size, sin: torch.Size, dtype: torch.dtype, turning: Turning
) -> RotaryArgs | None:
    if len(queries[0]) != 4 or len(keys[0]) != 4 or len(cos) != 3 or dtype not in DTYPES:
        return None
    (rows, heads, tokens, channels), kv_heads = queries[0], keys[0][1]
    if keys[0] != (rows, kv_heads, tokens, channels) or not heads * kv_heads * channels:
        return None
    angles, dim = cos[2], cos[2] * turning.share
    if cos != sin or cos[:2] not in ((rows, tokens), (1, tokens)) or not 0 < dim <= channels or dim % 2:
        return None
    if not queries[1][3] == keys[1][3] == 1:
        return None
    stride = 0 if cos[0] == 1 else tokens * angles
    sizes = (rows, tokens, dim, channels - dim, angles)
    heads_of = (_rows(*queries), _rows(*keys))
    return RotaryArgs(*sizes, None, None, stride, *heads_of, POINTS[turning.points], DTYPES[dtype])


def turn(queries: Tensor, keys: Tensor, cos: Tensor, sin: Tensor, layout: RotaryArgs) -> tuple[Tensor, Tensor]:
    """Queries [R, Hq, N, D] and keys [R, H, N, D], turned by their tokens' angles [R or 1, N, A].

    Of the first T = A channels, or 2A where both of a pair share an angle, x = i and y = i + T/2 become x cos - y sin
    and y cos + x sin, products rounded to the dtype before they are added up. Interleaved, x = 2i and y = 2i + 1 become
    channels i and i + T/2; complex, they stay neighbors, and nothing is rounded before the end. The rest stay as they
    are. The layout is that of these tensors; outputs lie in memory in the order of inputs.
    """
    turned_queries, turned_keys = torch.empty_like(queries), torch.empty_like(keys)
    args = RotaryArgs.from_buffer_copy(layout)
    args.cos, args.sin, args.threads = cos.data_ptr(), sin.data_ptr(), torch.get_num_threads()
    of_queries, of_keys = args.queries, args.keys
    of_queries.source, of_queries.target = queries.data_ptr(), turned_queries.data_ptr()
    of_keys.source, of_keys.target = keys.data_ptr(), turned_keys.data_ptr()
    native.loaded_library().winnow_rotary(ctypes.byref(args))
    if this_thread.recording is not None:
        call = LibraryCall("winnow_rotary", args, native.error_of)
        this_thread.recording.note_call(call, queries, keys, cos, sin, turned_queries, turned_keys)
    return turned_queries, turned_keys


def _rows(shape: torch.Size, strides: tuple[int, ...]) -> RotaryRows:
    target = torch.empty_like(torch.empty_strided(shape, strides, device="meta"))
    return RotaryRows(None, None, shape[1], *strides[:3], *target.stride()[:3])
