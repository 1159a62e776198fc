"""Gated delta rule and Kimi Delta Attention with the compiled kernel: states of linear attention, and reads of them."""

from __future__ import annotations

import ctypes
from functools import lru_cache

import torch
from torch import Tensor

from winnow.kernels import native
from winnow.kernels.native_args import DELTA_KEYS, DTYPES, DeltaArgs
from winnow.kernels.recording import LibraryCall, this_thread
from winnow.kernels.strides import Shape, has_heads_together, shape_of


def layout_of(
    queries: Tensor, keys: Tensor, values: Tensor, decays: Tensor, rates: Tensor, states: Tensor
) -> DeltaArgs | None:
    """The kernel's arguments for tensors that lie as these, without addresses; None where it does not read them."""
    dtype = queries.dtype
    if keys.dtype is not dtype or values.dtype is not dtype or rates.dtype is not dtype:
        return None
    if decays.dtype is not torch.float32 or states.dtype is not torch.float32 or not states.is_contiguous():
        return None
    if not all(each.is_cpu for each in (queries, keys, values, decays, rates, states)):
        return None
    shapes = [shape_of(each) for each in (queries, keys, values)]
    return _layout(*shapes, decays.shape, rates.shape, states.shape, dtype)


@lru_cache(maxsize=64)
def _layout(
    queries: Shape,
    keys: Shape,
    values: Shape,
    decays: torch.Size,
    rates: torch.Size,
    states: torch.Size,
    dtype: torch.dtype,
) -> DeltaArgs | None:
    if dtype not in DTYPES or not len(queries[0]) == len(keys[0]) == len(values[0]) == 4:
        return None
    (rows, tokens, heads, dim), (_, _, value_heads, value_dim) = queries[0], values[0]
    if keys[0] != queries[0] or values[0][:2] != (rows, tokens) or rates != values[0][:3]:
        return None
    per_channel = len(decays) == 4
    if decays != ((*rates, dim) if per_channel else rates):
        return None
    if not heads * value_heads * dim * value_dim or value_heads % heads or dim > DELTA_KEYS:
        return None
    if states != (rows, value_heads, dim, value_dim) or not all(map(has_heads_together, (queries, keys, values))):
        return None
    strides = [stride for each in (queries, keys, values) for stride in each[1][:2]]
    addresses = (None, None, None)
    sizes = (rows, tokens, heads, value_heads, dim, value_dim)
    return DeltaArgs(*sizes, *addresses, *strides, per_channel=per_channel, dtype=DTYPES[dtype])


def recur(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    decays: Tensor,
    rates: Tensor,
    states: Tensor,
    normalized: bool,
    layout: DeltaArgs,
) -> Tensor:
    """Outputs [R, N, Hv, Dv] of queries and keys [R, N, Hk, Dk] and values [R, N, Hv, Dv]; states change in place.

    For each token and value head, with its state S [Dk, Dv] in fp32, a decay g and a rate β of [R, N, Hv]: S ← exp(g) S
    and then S ← S + k (v - Sᵀk)ᵀ β; the output is Sᵀq / √Dk. A query or key serves Hv / Hk neighboring value heads.

    decays: or [R, N, Hv, Dk], one for each channel of a key, as in Kimi Delta Attention: S ← diag(exp(g)) S.
    There, what is below exp(-32) counts as 0.
    normalized: queries and keys are divided by their length first. The layout is that of these tensors.
    """
    decays, rates, outputs = decays.contiguous(), rates.contiguous(), values.new_empty(values.shape)
    args = DeltaArgs.from_buffer_copy(layout)
    args.queries, args.keys, args.values = queries.data_ptr(), keys.data_ptr(), values.data_ptr()
    args.decays, args.rates = decays.data_ptr(), rates.data_ptr()
    args.states, args.outputs = states.data_ptr(), outputs.data_ptr()
    args.normalized, args.threads = normalized, torch.get_num_threads()
    native.loaded_library().winnow_delta(ctypes.byref(args))
    if this_thread.recording is not None:
        call = LibraryCall("winnow_delta", args, native.error_of)
        this_thread.recording.note_call(call, queries, keys, values, decays, rates, states, outputs)
    return outputs
