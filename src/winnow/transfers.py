"""Small tensors on their way from the host to a device."""

from __future__ import annotations

import torch
from torch import Tensor


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device; itself where it is there. The host waits for no GPU."""
    return _ready(tensor, device).to(device, non_blocking=True)


def send_into(target: Tensor, tensor: Tensor) -> None:
    """A tensor's numbers into one of the same shape on a device, which may be in use there."""
    target.copy_(_ready(tensor, target.device), non_blocking=True)


def _ready(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor in memory from which a GPU copies by itself, and that torch keeps until then.

    For a copy of other memory of the host torch waits, and so for all that the device had to do before.
    """
    return tensor.pin_memory() if device.type == "cuda" and tensor.device.type == "cpu" else tensor
