"""Slots of a cache in a few numbers."""

from __future__ import annotations

from winnow.cache.stats import CacheStats


def mean_slots(stats: CacheStats) -> float:
    """Kept prompt tokens per KV head, over all compressed layers."""
    slots = [count for layer in stats.slots for count in layer]
    return sum(slots) / len(slots)


def slot_range(stats: CacheStats) -> tuple[int, int]:
    """Fewest and most kept prompt tokens of any KV head."""
    slots = [count for layer in stats.slots for count in layer]
    return min(slots), max(slots)
