"""Sizes of what values add to a layer's output, which is never there: a sum for every token and query head.

Tiles of values meet tiles of the output projection on tensor cores, and only sizes of the products are added up.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from winnow.kernels.gpu.forms import ELEMENTS
from winnow.kernels.gpu.precision import product_dtype
from winnow.kernels.gpu.scoring import LAUNCHES, STAGES
from winnow.kernels.gpu.tiles import tile_width
from winnow.kernels.gpu.window_tiles import keys_of


@triton.jit(do_not_specialize=["tokens", "width"])
def project_values(
    values, matrices, sizes, head_stride, token_stride, matrix_stride, channel_stride, output_stride,
    tokens, width, group,
    SQUARED: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, TOKENS: tl.constexpr, OUTPUTS: tl.constexpr,
    PRODUCT: tl.constexpr,
):  # fmt: skip
    """sizes [Hq, n]: sums of the sizes of a token's `width` outputs, or of their squares."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1)
    present = token < tokens
    rows = keys_of(values, head // group, head_stride, token_stride, token, present, DIM, WIDE).to(PRODUCT)
    channel = tl.arange(0, WIDE)
    matrix = matrices + head.to(tl.int64) * matrix_stride + channel[None, :] * channel_stride
    found = tl.zeros([TOKENS], tl.float32)
    for begin in range(0, width, OUTPUTS):
        output = begin + tl.arange(0, OUTPUTS)
        mask = (output < width)[:, None] & (channel < DIM)[None, :]
        tile = tl.load(matrix + output.to(tl.int64)[:, None] * output_stride, mask=mask, other=0.0)
        products = tl.dot(rows, tl.trans(tile.to(PRODUCT)), input_precision="ieee")
        found += tl.sum(products * products if SQUARED else tl.abs(products), 1)
    tl.store(sizes + head.to(tl.int64) * tokens + token, found, mask=present)


def output_sizes(values: Tensor, matrices: Tensor, squared: bool) -> Tensor:
    """fp32 [Hq, n]: Σ |W_h v| over the outputs, or Σ (W_h v)², of values [H, n, Dv] and matrices [Hq, Dv, E]."""
    heads, tokens, dim = values.shape
    rows = values if values.stride(-1) == 1 else values.contiguous()
    product, wide = product_dtype(rows.dtype, matrices.dtype), tile_width(dim)
    launch = LAUNCHES[(8 * product.itemsize, max(128, wide))]
    sizes = torch.empty(len(matrices), tokens, dtype=torch.float32, device=values.device)
    if tokens:
        with torch.cuda.device_of(values):  # Triton launches on the current one
            project_values[(triton.cdiv(tokens, launch.rows), len(matrices))](
                *(rows, matrices, sizes, *rows.stride()[:2], *matrices.stride(), tokens, matrices.shape[-1]),
                len(matrices) // heads,
                SQUARED=squared,
                DIM=dim,
                WIDE=wide,
                TOKENS=launch.rows,
                OUTPUTS=launch.keys,
                PRODUCT=ELEMENTS[product],
                num_warps=launch.warps,
                num_stages=STAGES,
            )
    return sizes
