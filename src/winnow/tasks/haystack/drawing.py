"""Draws of one example: the same for the same seed, on any machine, however many others are asked for."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Draw:
    """The place of an example among all that there may be."""

    task: str
    """Benchmark and task."""
    length: int
    """Tokens that its prompt and answer may take."""
    index: int
    seed: int

    @property
    def name(self) -> str:
        """Its name among the examples of its task."""
        return f"{self.length}-{self.index}"

    def rng(self, purpose: str) -> random.Random:
        """Random numbers for one purpose; those for another are others."""
        return random.Random(f"{self.task}-{self.seed}-{self.length}-{self.index}-{purpose}")
