"""Small tensors on their way from the host to a device."""

from __future__ import annotations

import torch
from torch import Tensor


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device; itself where it is there. The host waits for no GPU that it sends to."""
    if not _copied_by(device, tensor):
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def send_into(target: Tensor, tensor: Tensor) -> None:
    """A tensor's numbers into one of the same shape on a device, which may be in use there."""
    if _copied_by(target.device, tensor):
        target.copy_(tensor.pin_memory(), non_blocking=True)
    else:
        target.copy_(tensor)


def _copied_by(device: torch.device, tensor: Tensor) -> bool:
    """True if a GPU can copy a tensor by itself: one of the host, from pinned memory, which torch keeps until then.

    For copies of other memory torch waits, and so for all that the device had to do before.
    """
    return device.type == "cuda" and tensor.device.type == "cpu"
