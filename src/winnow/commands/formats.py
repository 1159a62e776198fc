"""Numbers as people read them."""

from __future__ import annotations

from winnow.cache import CacheStats
from winnow.evaluate.slots import mean_slots, slot_range
from winnow.report.numbers import written_bytes, written_seconds, written_share

__all__ = ["written_bytes", "written_seconds", "written_share", "written_slots", "written_speed"]


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
