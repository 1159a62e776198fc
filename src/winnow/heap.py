"""Memory that was freed, and that the C library keeps for later."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from functools import cache


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
