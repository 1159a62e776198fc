"""Layers and rows that can be served here; told without importing Triton, which takes a second."""

from __future__ import annotations

import warnings
from functools import cache
from importlib.util import find_spec

import torch
from packaging.version import Version
from torch import Tensor

from winnow.kernels.segments import TailSegments

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
OLDEST = "3.4"
"""Triton whose constants have attributes."""
WIDEST = 256
"""Largest head; what a program holds of queries and sums has to fit into its registers."""


def serves(rows: Tensor) -> bool:
    """True for rows [..., D] on a GPU that Triton drives, in a dtype and of a width that its kernels know."""
    return rows.device.type == "cuda" and rows.dtype in DTYPES and rows.shape[-1] <= WIDEST and _has_triton()


def packs(*sides: Tensor) -> bool:
    """True for keys and values [..., D] that Triton packs as integers, all their channels."""
    return all(serves(rows) for rows in sides)


def supports(tail: TailSegments) -> bool:
    """True for a layer on a GPU that Triton drives, in a dtype and of a head size that its kernels know."""
    return serves(tail.keys) and serves(tail.values)


def backend() -> str:
    """The kernels that serve a CUDA device, for reports: "triton 3.9.0", or "torch reference"."""
    return f"triton {_triton_version()}" if _has_triton() else "torch reference"


@cache
def _has_triton() -> bool:
    """True if Triton is installed, and new enough; warns once where it is not."""
    if find_spec("triton") is None:
        problem, remedy = "is not installed", "Install it: pip install triton."
    elif Version(_triton_version()) < Version(OLDEST):
        problem, remedy = f"{_triton_version()} is too old", f"Install torch 2.8 or newer, which includes {OLDEST}."
    else:
        return True
    warnings.warn(
        f"Triton {problem}, so decoding on the GPU falls back to the torch reference, which is many times slower. "
        f"{remedy}",
        RuntimeWarning,
        stacklevel=2,
    )
    return False


def _triton_version() -> str:
    """The module's: packages that bring it have several names."""
    from triton import __version__

    return str(__version__)
