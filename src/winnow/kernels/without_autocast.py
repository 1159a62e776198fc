"""Numbers in the dtype that whoever computes with them chose, also inside `torch.autocast`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def without_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Within, products on a device are formed in the dtype of their factors.

    `torch.autocast` rounds those of float32 to half as many bits, which is meant for a model's layers: scores, sums and
    logits are formed in float32 on purpose.
    """
    kind = device.type
    active = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if active else nullcontext()
