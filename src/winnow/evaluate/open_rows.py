"""Rows of a batch that go on, and those that ended and leave it."""

from __future__ import annotations

import torch
from torch import Tensor


class OpenRows:
    """Rows 0 to `count` - 1, of which fewer and fewer are still in the batch."""

    def __init__(self, count: int) -> None:
        self.there = list(range(count))
        """Rows in the batch, in its order."""
        self.open = set(self.there)
        """Those of them that go on."""

    def leave_out_ended(self) -> Tensor | None:
        """Places in the batch of the rows that stay, as soon as these are half of those there or fewer; else None.

        Earlier it does not pay: a batch that changes is worked out anew.
        """
        if 2 * len(self.open) > len(self.there):
            return None
        kept = [place for place, row in enumerate(self.there) if row in self.open]
        self.there = [self.there[place] for place in kept]
        return torch.tensor(kept, dtype=torch.int64)
