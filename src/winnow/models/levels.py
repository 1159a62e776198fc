"""Weights as levels in steps, which layers of few bits store, and files hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Levels(NamedTuple):
    """Rows of numbers [R, I]: steps times levels above one in the middle, plus an offset of each group of S numbers."""

    levels: Tensor
    """[R, I], int8 or uint8."""
    middle: int
    """The level that stands for zero steps."""
    steps: Tensor
    """[R, I/S], in float32, as are the offsets."""
    offsets: Tensor | None
    """None where they are all zero."""

    def values(self) -> Tensor:
        """[R, I], in float32."""
        groups = self.levels.float().unflatten(1, (self.steps.shape[1], -1))
        groups.sub_(self.middle).mul_(self.steps[..., None])
        return (groups if self.offsets is None else groups.add_(self.offsets[..., None])).flatten(1)

    def at(self, level: int) -> Tensor:
        """[R, I/S] the numbers that a level stands for, in float32."""
        found = (level - self.middle) * self.steps
        return found if self.offsets is None else found + self.offsets


def joined(parts: Sequence[Levels]) -> Levels:
    """Rows behind each other, of levels that have the same middle and all offsets or none."""
    first = parts[0]
    offsets = None if first.offsets is None else torch.cat([part.offsets for part in parts if part.offsets is not None])
    levels, steps = torch.cat([part.levels for part in parts]), torch.cat([part.steps for part in parts])
    return Levels(levels, first.middle, steps, offsets)
