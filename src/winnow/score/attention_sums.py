"""The window's attention in sums, for allocators that compare layers by it."""

from __future__ import annotations

import torch

from winnow.score import on_gpu
from winnow.score.window import attention_blocks
from winnow.view import LayerView, WindowAttention


def window_attention(view: LayerView, rows: int) -> WindowAttention:
    """Attention of the last `rows` queries (all of a shorter prompt) to the tokens before them, a block at a time."""
    length = view.keys.shape[1]
    rows = min(rows, length)
    if on_gpu.serves(view):
        return _on_a_gpu(view, rows)
    shape = (view.queries.shape[0], length - rows)
    mass, squares = (view.keys.new_zeros(shape, dtype=torch.float32) for _ in range(2))
    entropy = view.keys.new_zeros(shape[:1], dtype=torch.float32)
    for block in attention_blocks(view, rows):
        outside = block.attention[..., : length - rows].flatten(0, 1)  # [Hq, r, N - w]
        mass += outside.sum(dim=1)
        squares += outside.square().sum(dim=1)
        entropy -= torch.special.xlogy(outside, outside).sum(dim=(1, 2))
    return WindowAttention(rows, mass, squares, entropy)


def _on_a_gpu(view: LayerView, rows: int) -> WindowAttention:
    """The same, and never a matrix of probabilities."""
    from winnow.kernels.gpu.paying import ENTROPY, SHARES, SQUARES

    window, outside = on_gpu.normalized(view, rows), view.keys.shape[1] - rows
    mass, squares, entropy = (window.paid(outside, what).flatten(0, 1) for what in (SHARES, SQUARES, ENTROPY))
    return WindowAttention(rows, mass, squares, entropy.sum(dim=1))
