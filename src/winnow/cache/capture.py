"""Work that is captured once and replayed: the seam between a decode step and graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor


class Captured(Protocol):
    """Work that can be done again, on the same memory, without the host going through it."""

    output: Tensor
    """The result of the latest replay, in memory that the next one writes."""

    def replay(self) -> None: ...


Capture = Callable[[Callable[[], Tensor], torch.device], Captured]
"""A way to capture work on a device.

The work is done once for every replay: where capturing did it already, the first one has nothing left to do.
"""
