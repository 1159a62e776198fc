"""Rows in the coordinates in which they are packed, whichever kernels serve it."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from winnow.kernels import native
from winnow.kernels.formats.hadamard import hadamard
from winnow.kernels.native_args import DTYPES, RotateArgs
from winnow.kernels.recording import refuse_recording


def centered_rows(rows: Tensor, means: Tensor, head: Tensor) -> Tensor:
    """Rows [S, D] of heads [S] -> fp32, less the means [H, D] of their heads."""
    return rows.float() - means.float()[head]


def smoothed_rows(rows: Tensor, spreads: Tensor, head: Tensor) -> Tensor:
    """Rows [S, D] of heads [S] -> fp32, divided by the spreads [H, D] of their heads."""
    return rows.float() / spreads.float()[head]


def rotated_rows(rows: Tensor) -> Tensor:
    """Rows [S, D] -> fp32 after a Walsh–Hadamard transform, the same to the bit on every backend."""
    if rows.device.type != "cpu" or rows.dtype not in DTYPES or native.library() is None:
        return hadamard(rows.float())
    rows = rows.contiguous()
    output = torch.empty_like(rows, dtype=torch.float32)
    args = RotateArgs(
        rows=rows.data_ptr(),
        slots=rows.shape[0],
        dim=rows.shape[1],
        output=output.data_ptr(),
        dtype=DTYPES[rows.dtype],
        threads=torch.get_num_threads(),
    )
    refuse_recording("rotation")
    if native.loaded_library().winnow_rotate(ctypes.byref(args)):
        raise MemoryError("no memory for the scratch of rotation")
    return output
