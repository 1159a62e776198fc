"""Memory that rounding a weight takes: for what stays, and for what is there while a part of the weight is rounded."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from winnow.models.large_pages import LargePages


class Room:
    """Memory for one rounded weight after another.

    The C library (glibc, before 2.38) hardly finds use for aligned memory again that was given back between what
    stays: rounding a model would take several times its bytes. So parts of every weight go to the same memory.
    """

    def __init__(self, pages: LargePages | None = None) -> None:
        """pages: where rounded weights lie; None for torch's own memory."""
        self._pages = pages
        self._passing: dict[torch.dtype, Tensor] = {}

    def staying(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Memory of a rounded weight, or of its scales."""
        if self._pages is None:
            return torch.empty(*shape, dtype=dtype, device="cpu")
        return self._pages.room(shape, dtype)

    def passing(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        """A contiguous copy in a dtype, until the next one in that dtype."""
        held = self._passing.get(dtype)
        if held is None or held.numel() < values.numel():
            held = self._passing[dtype] = torch.empty(values.numel(), dtype=dtype, device="cpu")
        return held[: values.numel()].view(values.shape).copy_(values)
