"""Work on a CUDA device, captured once and replayed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from winnow.kernels.gpu.streams import stream_for

_one_at_a_time = RLock()


class CudaGraph:
    """Work on a CUDA device as a graph, with memory of its own for all that lies between.

    Raises RuntimeError for work that waits for the device, or sends numbers there.
    """

    def __init__(self, work: Callable[[], Tensor], device: torch.device) -> None:
        self._graph = torch.cuda.CUDAGraph()
        with _one_at_a_time, torch.cuda.device(device):
            before, pool = torch.cuda.current_stream(), torch.cuda.graph_pool_handle()
            try:
                with _capturing(self._graph, before.device, pool):
                    self.output = work()
            except BaseException:
                torch.cuda.set_stream(before)  # torch does not where a capture fails
                _end_for_torch(pool, before.device)
                raise

    def replay(self) -> None:
        """The work once more, on the current stream."""
        self._graph.replay()


@contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, device: torch.device, pool: Any = None) -> Iterator[None]:
    """Captures what happens within, in this thread: what others ask of the device meanwhile is theirs."""
    stream, collected = stream_for("capture", device), gc.isenabled()
    # An old graph in a cycle of objects would end the capture: CUDA destroys none in a thread that captures.
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            yield
    finally:
        if collected:
            gc.enable()


def _end_for_torch(pool: Any, device: torch.device) -> None:
    """Tells torch that a capture failed, of which it takes no note.

    Its allocator would never free what other streams used, and its generator refuse to draw, as long as they think that
    the capture goes on. One that succeeds ends it for them.
    """
    stream_for.cache_clear()  # those of the capture may be left in it
    with suppress(RuntimeError, AttributeError):  # it is ended already where torch takes note
        torch._C._cuda_endAllocateToPool(device.index, pool)
        torch._C._cuda_releasePool(device.index, pool)
    with suppress(RuntimeError):
        empty = torch.cuda.CUDAGraph()
        with _capturing(empty, device):
            torch.zeros((), device=device)
