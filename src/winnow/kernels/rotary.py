"""Rotary embedding of queries and keys with the compiled kernel, in one pass."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from winnow.kernels import native
from winnow.kernels.native_args import DTYPES, RotaryArgs, RotaryRows


def reads(queries: Tensor, keys: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """True if the kernel takes such tensors: see `turn`."""
    dtype = queries.dtype
    if queries.ndim != 4 or keys.ndim != 4 or cos.ndim != 3 or dtype not in DTYPES:
        return False
    rows, heads, tokens, dim = queries.shape
    if keys.shape != (rows, keys.shape[1], tokens, dim) or not heads * keys.shape[1] * dim or dim % 2:
        return False
    if cos.shape != sin.shape or cos.shape not in ((rows, tokens, dim), (1, tokens, dim)):
        return False
    if not (queries.stride(3) == keys.stride(3) == 1 and cos.is_contiguous() and sin.is_contiguous()):
        return False
    return all(each.is_cpu and each.dtype is dtype for each in (queries, keys, cos, sin))


def turn(queries: Tensor, keys: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries [R, Hq, N, D] and keys [R, H, N, D], turned by their tokens' angles [R or 1, N, D].

    Channels x = i and y = i + D/2 become x cos - y sin and y cos + x sin, products rounded to the dtype before they are
    added up. The tensors are ones that the kernel `reads`; outputs lie in memory in the order of inputs.
    """
    turned_queries, turned_keys = torch.empty_like(queries), torch.empty_like(keys)
    rows, _, tokens, dim = queries.shape
    args = RotaryArgs(
        rows,
        tokens,
        dim,
        cos.data_ptr(),
        sin.data_ptr(),
        0 if len(cos) == 1 else cos.stride(0),
        _rows(queries, turned_queries),
        _rows(keys, turned_keys),
        DTYPES[queries.dtype],
        torch.get_num_threads(),
    )
    native.loaded_library().winnow_rotary(ctypes.byref(args))
    return turned_queries, turned_keys


def _rows(source: Tensor, target: Tensor) -> RotaryRows:
    return RotaryRows(source.data_ptr(), target.data_ptr(), source.shape[1], *source.stride()[:3], *target.stride()[:3])
