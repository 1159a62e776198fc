"""Work on a device, captured once and replayed: the seam between a decode step and CUDA graphs."""

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
"""A way to capture work on a device; it is gone through once, and only a replay does it."""


class CudaGraph:
    """Work on a CUDA device as a graph, with memory of its own for all that lies between.

    Raises RuntimeError for work that waits for the device, or sends numbers there.
    """

    def __init__(self, work: Callable[[], Tensor], device: torch.device) -> None:
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device):
            before = torch.cuda.current_stream()
            try:
                # torch's own stream for it is on the device that captured first. What other threads ask of the device
                # meanwhile is theirs.
                stream, mode = torch.cuda.Stream(), "thread_local"
                with torch.cuda.graph(self._graph, stream=stream, capture_error_mode=mode):
                    self.output = work()
            finally:
                torch.cuda.set_stream(before)  # torch does not where a capture fails

    def replay(self) -> None:
        """The work once more, on the current stream."""
        self._graph.replay()
