"""Streams of a device besides the usual one, made once for each purpose."""

from __future__ import annotations

from functools import lru_cache

import torch


@lru_cache(maxsize=256)
def stream_for(purpose: str, device: torch.device, priority: int = 0) -> torch.cuda.Stream:
    """The stream of a device for a purpose.

    New ones would not do: torch has 32 in all, so that they would soon be those that other threads work on, and cuBLAS
    keeps memory for every one that it ever met.
    """
    return torch.cuda.Stream(device, priority=priority)
