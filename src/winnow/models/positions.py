"""Positions of tokens, where a model is not left to count them."""

from __future__ import annotations

import torch
from torch import Tensor


def positions_from(first: int, tokens: Tensor) -> Tensor:
    """[1, n] positions of tokens [R, n] behind `first` others, on their device."""
    return torch.arange(first, first + tokens.shape[1], device=tokens.device)[None]
