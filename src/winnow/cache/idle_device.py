"""Waiting for a device, so that its earlier work does not count as a later one's time."""

from __future__ import annotations

import torch


def wait_until_idle(device: torch.device) -> None:
    """Returns once a device has done all that its current stream was given."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
