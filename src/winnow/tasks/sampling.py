"""Samples of examples: the same for the same seed, and a larger one holds every smaller one."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from winnow.tasks.example import Example


def sampled(examples: Sequence[Example], count: int | None, seed: int) -> tuple[Example, ...]:
    """At most `count` examples, in their order; None for all.

    Each example has a rank by seed and name alone, so that the sample of a file does not change with rows that others
    took out of it.
    """
    if count is None or count >= len(examples):
        return tuple(examples)
    taken = {example.name for example in sorted(examples, key=lambda each: _rank(seed, each.name))[:count]}
    return tuple(example for example in examples if example.name in taken)


def _rank(seed: int, name: str) -> tuple[bytes, str]:
    return sha256(f"{seed} {name}".encode()).digest(), name
