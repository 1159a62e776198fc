"""Numbers as people read them."""

from __future__ import annotations

from winnow.cache import CacheStats
from winnow.evaluate.slots import mean_slots, slot_range


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


def written_slots(stats: CacheStats) -> str:
    """Mean over the KV heads, then fewest and most where they differ: "128 (9-640)"."""
    least, most = slot_range(stats)
    mean = f"{mean_slots(stats):,.0f}"
    return mean if least == most else f"{mean} ({least:,}–{most:,})"


def written_speed(tokens_per_second: float | None) -> str:
    """Tokens per second, with a decimal below ten, or a dash where none were decoded."""
    if tokens_per_second is None:
        return "–"
    return f"{tokens_per_second:,.{0 if tokens_per_second >= 10 else 1}f} tok/s"


def written_share(part: float, whole: float) -> str:
    """Part of a whole in percent; two digits below ten."""
    percent = 100 * part / whole if whole else 0.0
    return f"{percent:.1f}%" if percent < 10 else f"{percent:.0f}%"
