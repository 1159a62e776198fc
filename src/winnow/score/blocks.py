"""Sizes of blocks in which scorers go through a layer."""

from __future__ import annotations

import torch
from torch import Tensor

_ON_A_GPU = 1 << 24
"""Numbers to hold at once on a GPU (64 MiB in fp32): few launches, and what one leaves for the next is still near."""


def numbers_at_once(device: torch.device, on_cpu: int) -> int:
    """Numbers to hold at once on a device: on a CPU `on_cpu`, which would leave a GPU idle."""
    return on_cpu if device.type == "cpu" else max(on_cpu, _ON_A_GPU)


def tokens_at_once(rows: Tensor, on_cpu: int) -> int:
    """Tokens of rows [H, N, D] to convert to fp32 at once: `on_cpu` of them on a CPU."""
    heads, _, dim = rows.shape
    return max(on_cpu, numbers_at_once(rows.device, 0) // (heads * dim))
