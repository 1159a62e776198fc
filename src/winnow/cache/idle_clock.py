"""Seconds of work on a device, without those of work that was given to it before."""

from __future__ import annotations

import time

import torch


def idle_clock(device: torch.device) -> float:
    """Seconds of a monotonic clock, once a device has done all that its current stream was given."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return time.perf_counter()
