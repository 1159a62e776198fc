"""Padding of a batch: which tokens of its rows are none, as the host knows it."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.transfers import sent

Places = slice | Tensor
"""Tokens of a row, as an index: a slice where they lie side by side."""
_ON_HOST = "_winnow_on_host"


def on_host(valid: Tensor) -> Tensor:
    """A mask of valid tokens on the CPU. One that lies on a device is brought here once, whatever layers ask for it."""
    if valid.device.type == "cpu":
        return valid
    known: Tensor | None = getattr(valid, _ON_HOST, None)
    if known is None:
        known = valid.cpu()
        setattr(valid, _ON_HOST, known)
    return known


def places_of(valid: Tensor, device: torch.device) -> Places:
    """The places [n] at which a mask [N] bool, which lies on the CPU, is true; indices are int64 on `device`."""
    found = valid.nonzero().flatten()
    if not len(found):
        return slice(0, 0)
    first, last = int(found[0]), int(found[-1])
    return slice(first, last + 1) if last - first + 1 == len(found) else sent(found, device)
