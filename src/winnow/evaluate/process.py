"""Memory of the whole process: weights, activations and libraries besides the cache."""

from __future__ import annotations

import sys

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


def peak_memory() -> int | None:
    """Bytes that this process had resident at its peak so far; None where the system does not tell.

    On Linux a process starts with the peak of the one that started it.
    """
    if resource is None:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
