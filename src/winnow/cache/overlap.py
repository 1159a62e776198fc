"""Compression of a layer while its device works on the next one.

Compressing takes many small launches, and the host waits for some of their results, since counts decide sizes. On a
device that has nothing else to do meanwhile it idles through the host's part. So a prompt's layers are compressed one
behind, on a stream of their own: what these wait for is small, and the next layer keeps the device busy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol
from weakref import ref

import torch
from torch import Tensor

from winnow.cache.arriving import Arriving
from winnow.doubts import Doubts
from winnow.kernels.gpu.streams import stream_for

LARGEST = 1 << 28
"""Bytes of keys and values that wait at most. Longer prompts take a device so long that the host's part is small."""


class PromptLayer(Protocol):
    """A layer whose prompt was attended to."""

    index: int
    waiting: bool
    whole: tuple[Tensor, Tensor] | None
    arriving: Arriving

    def compress_waiting(self) -> None: ...
    def tensors(self) -> list[Tensor]: ...


class _Waiting(NamedTuple):
    layer: ref[PromptLayer]
    device: torch.device
    attended: torch.cuda.Event
    """All that its prompt is compressed from is computed."""


class Overlap:
    """The layer of a prompt that waits while its device works on the next one; at most one of a cache.

    It keeps no layer alive: a cache whose prompt fails is gone when its user lets go of it.
    """

    def __init__(self) -> None:
        self._waiting: _Waiting | None = None
        self._compressed: list[_Waiting] = []
        self._doubts = Doubts()

    def serves(self, keys: Tensor, values: Tensor) -> bool:
        """True if a prompt of these keys and values may be compressed later, on a stream of its own."""
        return keys.is_cuda and keys.nbytes + values.nbytes <= LARGEST

    def add(self, layer: PromptLayer, device: torch.device, last: bool) -> None:
        """A layer waits, its attention is launched on `device`: compresses the one before, and itself if it is `last`.

        Raises what compression raises.
        """
        self._begin(layer)
        with torch.cuda.device(device):
            attended = torch.cuda.Event()
            attended.record()
        before, self._waiting = self._waiting, _Waiting(ref(layer), device, attended)
        if before is not None:
            self._compress(before)
        if last:
            self._finish()

    def precede(self, layer: PromptLayer) -> None:
        """A layer is about to be compressed without waiting: the one before comes first.

        Raises what compression raises.
        """
        self._begin(layer)
        self._finish()

    def _begin(self, layer: PromptLayer) -> None:
        """Lets go of what is left where a prompt begins: it is of one that failed."""
        if not layer.index:
            self._waiting, self._compressed, self._doubts = None, [], Doubts()

    def _finish(self) -> None:
        """Compresses the layer that waits, and settles what there is to know of all that waited."""
        here, self._waiting = self._waiting, None
        if here is not None:
            self._compress(here)
        self._hand_over()
        self._doubts.settle()

    def _compress(self, waiting: _Waiting) -> None:
        layer = waiting.layer()
        if layer is None or not layer.waiting:  # it was compressed otherwise
            return
        waiting.attended.synchronize()  # first, so that compression is not said to take this time
        read = layer.whole, layer.arriving  # held until nothing new on the usual stream can take their place
        with _beside(waiting.device), self._doubts.collecting():
            layer.compress_waiting()
        del read
        self._compressed.append(waiting)

    def _hand_over(self) -> None:
        """Tells the allocator that kernels of the usual streams read what layers hold.

        It was made on other streams, whose next tensors would else take its place while those still read it.
        """
        for layer, device, _ in self._compressed:
            held = layer()
            for tensor in () if held is None else held.tensors():
                if tensor.is_cuda:
                    tensor.record_stream(torch.cuda.current_stream(device))
        self._compressed.clear()


@contextmanager
def _beside(device: torch.device) -> Iterator[None]:
    """Launches go to the other stream of a device; what is launched on the usual one afterwards comes after these."""
    # It goes first, so that small kernels need not stand behind large ones.
    usual, other = torch.cuda.current_stream(device), stream_for("compression", device, priority=-1)
    try:
        with torch.cuda.stream(other):
            yield
    finally:
        usual.wait_stream(other)
