"""Buffers that are written in place later, by whoever goes on with a cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def writable() -> Iterator[None]:
    """Tensors made within may be written outside `torch.inference_mode()`, too, where those made in it may not."""
    with torch.inference_mode(False), torch.no_grad():
        yield
