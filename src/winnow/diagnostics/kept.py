"""Measures on kept sets: which tokens the heads of a layer keep, and how much they have in common.

A layer's kept set is a mask [H, N]. ApertureKV, App. F: Eq. 21-24.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def kept_mask(kept: Sequence[Tensor], length: int) -> Tensor:
    """[H, N] bool from the kept positions of every head, int64, on their device."""
    mask = torch.zeros(len(kept), length, dtype=torch.bool, device=kept[0].device)
    for head, positions in zip(mask, kept, strict=True):
        head[positions] = True
    return mask


def retained_diversity(mask: Tensor) -> float:
    """RTD of a mask [H, N]: the share of the tokens that any head keeps."""
    return float(mask.any(dim=0).double().mean())


def head_overlap(mask: Tensor) -> Tensor:
    """[H, H] float64 on the CPU: intersection over union of the kept sets of every two heads.

    1 on the diagonal. Two heads that keep nothing have nothing in common: 0.
    """
    shared = mask.float() @ mask.float().T  # whole numbers, exact in fp32
    shared = shared.double().cpu()
    slots = shared.diagonal()
    union = slots[:, None] + slots[None, :] - shared
    return (shared / union.clamp(min=1)).fill_diagonal_(1.0)
