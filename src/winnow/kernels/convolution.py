"""Short causal convolutions with the compiled kernel: every channel by itself."""

from __future__ import annotations

import ctypes
from functools import lru_cache

import torch
from torch import Tensor

from winnow.kernels import native
from winnow.kernels.native_args import DTYPES, TAPS, ConvolutionArgs, address
from winnow.kernels.recording import LibraryCall, this_thread


def layout_of(
    inputs: Tensor, weight: Tensor, bias: Tensor | None = None, states: Tensor | None = None
) -> ConvolutionArgs | None:
    """The kernel's arguments for tensors that lie as these, without addresses; None where it does not read them."""
    others = [each for each in (weight, bias, states) if each is not None]
    dtype = inputs.dtype
    if not inputs.is_cpu or not all(each.is_cpu and each.dtype is dtype and each.is_contiguous() for each in others):
        return None
    shapes = (None if bias is None else bias.shape, None if states is None else states.shape)
    return _layout(inputs.shape, inputs.stride(), weight.shape, *shapes, dtype)


@lru_cache(maxsize=64)
def _layout(
    inputs: torch.Size,
    strides: tuple[int, ...],
    weight: torch.Size,
    bias: torch.Size | None,
    states: torch.Size | None,
    dtype: torch.dtype,
) -> ConvolutionArgs | None:
    if len(inputs) != 3 or len(weight) != 2 or dtype not in DTYPES:
        return None
    (rows, channels, tokens), taps = inputs, weight[1]
    if weight[0] != channels or not channels or not 2 <= taps <= TAPS or (strides[1] != 1 and channels != 1):
        return None
    if bias not in (None, (channels,)):
        return None
    length = 0
    if states is not None:
        if len(states) != 3 or states[:2] != (rows, channels) or states[2] < taps - 1:
            return None
        length = states[2]
    return ConvolutionArgs(
        rows, tokens, channels, taps, None, strides[0], strides[2], None, length, dtype=DTYPES[dtype]
    )


def convolve(
    inputs: Tensor, weight: Tensor, bias: Tensor | None, silu: bool, states: Tensor | None, layout: ConvolutionArgs
) -> Tensor:
    """Outputs [R, C, N] of inputs [R, C, N], whose channels lie beside each other, as those of outputs do.

    Each is the sum of its channel's last K inputs times the weight [C, K], and the bias [C]: added up in fp32, and
    rounded. silu: what was rounded goes through it. Before the first inputs are those of the states [R, C, L], the
    latest last, which are moved on; without states they are zeros. The layout is that of these tensors.
    """
    rows, channels, tokens = inputs.shape
    outputs = inputs.new_empty(rows, tokens, channels)
    args = ConvolutionArgs.from_buffer_copy(layout)
    args.inputs, args.states, args.weight = inputs.data_ptr(), address(states), weight.data_ptr()
    args.bias, args.outputs = address(bias), outputs.data_ptr()
    args.silu, args.threads = silu, torch.get_num_threads()
    native.loaded_library().winnow_convolve(ctypes.byref(args))
    if this_thread.recording is not None:
        call = LibraryCall("winnow_convolve", args, native.error_of)
        this_thread.recording.note_call(call, inputs, weight, bias, states, outputs)
    return outputs.transpose(1, 2)
