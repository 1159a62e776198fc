"""Numbers as people read them."""

from __future__ import annotations


def written_bytes(count: float) -> str:
    """1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def written_seconds(seconds: float) -> str:
    """0.0123 -> "12 ms", 3.21 -> "3.2 s"."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def written_share(part: float, whole: float) -> str:
    """Part of a whole in percent; two digits below ten."""
    percent = 100 * part / whole if whole else 0.0
    return f"{percent:.1f}%" if percent < 10 else f"{percent:.0f}%"
