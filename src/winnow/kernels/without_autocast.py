"""Numbers in the dtype that whoever computes with them chose, also inside `torch.autocast`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def without_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Within, products on a device are formed in the dtype of their factors.

    `torch.autocast` rounds those of float32 to half as many bits, which is meant for a model's layers: scores, sums and
    logits are formed in float32 on purpose.
    """
    return torch.autocast(device.type, enabled=False) if autocast_is_on(device) else nullcontext()


def autocast_is_on(device: torch.device) -> bool:
    """True inside `torch.autocast` for such a device."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
