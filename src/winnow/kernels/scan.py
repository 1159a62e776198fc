"""State scan of Mamba-2 with the compiled kernel: the states of heads, and what tokens read from them."""

from __future__ import annotations

import ctypes
from functools import lru_cache

import torch
from torch import Tensor

from winnow.kernels import native
from winnow.kernels.native_args import DTYPES, SCAN_STATE, ScanArgs, address
from winnow.kernels.recording import LibraryCall, this_thread
from winnow.kernels.strides import Shape, has_heads_together, shape_of


def layout_of(inputs: Tensor, steps: Tensor, enter: Tensor, leave: Tensor, states: Tensor) -> ScanArgs | None:
    """The kernel's arguments for tensors that lie as these, without addresses; None where it does not read them."""
    given = (inputs, steps, enter, leave)
    dtype = inputs.dtype
    if not all(each.is_cpu and each.dtype is dtype for each in given):
        return None
    if not states.is_cpu or states.dtype is not torch.float32 or not states.is_contiguous():
        return None
    shapes = [shape_of(each) for each in given]
    return _layout(*shapes, states.shape, dtype)


@lru_cache(maxsize=64)
def _layout(
    inputs: Shape, steps: Shape, enter: Shape, leave: Shape, states: torch.Size, dtype: torch.dtype
) -> ScanArgs | None:
    if dtype not in DTYPES or not len(inputs[0]) == len(enter[0]) == 4 or enter[0] != leave[0]:
        return None
    (rows, tokens, heads, dim), (_, _, groups, state_dim) = inputs[0], enter[0]
    if steps[0] != (rows, tokens, heads) or enter[0][:2] != (rows, tokens) or states != (rows, heads, dim, state_dim):
        return None
    if not heads * groups * dim * state_dim or heads % groups or state_dim > SCAN_STATE:
        return None
    if not all(map(has_heads_together, (inputs, enter, leave))) or (steps[1][2] != 1 and heads != 1):
        return None
    strides = [stride for each in (inputs, steps, enter, leave) for stride in each[1][:2]]
    addresses = (None, None, None, None)
    return ScanArgs(rows, tokens, heads, groups, dim, state_dim, *addresses, *strides, dtype=DTYPES[dtype])


def scan(
    inputs: Tensor,
    steps: Tensor,
    enter: Tensor,
    leave: Tensor,
    rates: Tensor,
    biases: Tensor | None,
    through: Tensor | None,
    states: Tensor,
    limits: tuple[float, float],
    softplus: bool,
    dtype: torch.dtype,
    layout: ScanArgs,
) -> Tensor:
    """Outputs [R, N, H, P] of inputs x [R, N, H, P], B (`enter`) and C (`leave`) [R, N, G, S]; states change in place.

    For each token and head, with its state Z [P, S] in fp32 and a step t of [R, N, H]: Z ← exp(t A) Z + t x Bᵀ; the
    output is Z C + D x, in fp32 and then rounded to a dtype, float32 or that of inputs. A group's B and C serve H / G
    neighboring heads. A (`rates`), at most 0, D (`through`) and biases are fp32 [H], contiguous.

    limits: steps get the bias, go through softplus where asked, are not below the first limit and not above the second,
    and are rounded to their dtype, as after the bias. The layout is that of these tensors.
    """
    outputs = inputs.new_empty(inputs.shape, dtype=dtype)
    args = ScanArgs.from_buffer_copy(layout)
    args.inputs, args.steps, args.enter, args.leave = (each.data_ptr() for each in (inputs, steps, enter, leave))
    args.rates, args.biases, args.through = rates.data_ptr(), address(biases), address(through)
    args.states, args.outputs = states.data_ptr(), outputs.data_ptr()
    (args.least, args.most), args.softplus = limits, softplus
    args.outputs_f32, args.threads = dtype is torch.float32, torch.get_num_threads()
    native.loaded_library().winnow_scan(ctypes.byref(args))
    if this_thread.recording is not None:
        call = LibraryCall("winnow_scan", args, native.error_of)
        this_thread.recording.note_call(call, inputs, steps, enter, leave, rates, biases, through, states, outputs)
    return outputs
