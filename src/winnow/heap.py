"""Memory that was freed, and that the C library keeps for later."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from functools import cache

import torch

MANY = 256
"""Tokens whose activations are worth giving back."""


def give_back_after(tokens: int, device: torch.device) -> None:
    """Gives back what a model on a device freed as it read so many tokens: for many of them, on a CPU."""
    if tokens >= MANY and device.type == "cpu":
        give_back()


def give_back() -> None:
    """Gives freed memory back to the system where the C library would keep it (glibc); it takes milliseconds.

    A prompt's activations are freed between what stays, and glibc gives back by itself only what lies behind all that.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    with suppress(OSError, TypeError, AttributeError):  # of systems without one library for all, and other C libraries
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
        return trim
    return None
