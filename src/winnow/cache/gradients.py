"""Gradients, which end at what a cache holds."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.errors import CacheError


def wants_gradients(*tensors: Tensor) -> bool:
    """True if gradients are to flow to any of some tensors."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def check_no_gradients(*tensors: Tensor) -> None:
    """Raises CacheError where gradients are wanted of a step over tokens that a cache holds, which are detached."""
    if wants_gradients(*tensors):
        raise CacheError(
            "gradients cannot flow into a compressed cache: its tokens are detached, so the model's gradients would be "
            "wrong. Run the step within torch.no_grad(), or freeze the model with model.requires_grad_(False) and "
            "detach the inputs; train with the model's own cache, or with none."
        )
