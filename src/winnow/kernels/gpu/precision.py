"""Dtype in which numbers are multiplied, on a device and under Triton's interpreter."""

from __future__ import annotations

import torch
import triton

from winnow.kernels.gpu.queries import query_rows

INTERPRETED = not isinstance(query_rows, triton.runtime.JITFunction)
"""True under TRITON_INTERPRET=1, where kernels run on the CPU."""
PTX = not INTERPRETED and torch.version.hip is None
"""True where kernels become PTX and may hold some: on no GPU of AMD's."""


def product_dtype(left: torch.dtype, right: torch.dtype) -> torch.dtype:
    """Dtype in which numbers of two dtypes are multiplied: products of two of 16 bits are exact in fp32.

    Different ones take all bits of fp32; so does bf16 under the interpreter, whose products of it are wrong.
    """
    if left != right or (INTERPRETED and left == torch.bfloat16):
        return torch.float32
    return left
