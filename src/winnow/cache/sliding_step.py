"""One more token of every row of a sliding layer, in a step that is recorded: its window stays a matter of Python.

Windows move with every token. So the token's keys and values are put off until the attention function has them, and
both, adding them to the window and attending over it, are gone through anew at every replay.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from winnow.cache.hybrid import CompactSlidingLayer
from winnow.errors import GraphError
from winnow.kernels.recording import this_thread

ATTRIBUTE = "_winnow_window"


def put_off(layer: CompactSlidingLayer, keys: Tensor) -> None:
    """Leaves a note with a token's keys [R, H, 1, D], by which `over_window` finds the layer."""
    setattr(keys, ATTRIBUTE, layer)


def over_window(keys: Tensor, values: Tensor, attend: Callable[[Tensor, Tensor], Tensor]) -> Tensor | None:
    """Attention over the window and a token's keys and values, which it has then; None for any others.

    attend: over keys and values of a window.
    """
    recording, layer = this_thread.recording, getattr(keys, ATTRIBUTE, None)
    if recording is None or layer is None:
        return None
    return recording.anew(lambda: attend(*layer.update(keys, values)))


class Windows:
    """Sliding layers of a cache before a token."""

    def __init__(self, layers: list[CompactSlidingLayer]) -> None:
        self._layers = layers
        self._marks = [layer.mark() for layer in layers]

    def take_back(self) -> None:
        """Puts all of them back."""
        for layer, mark in zip(self._layers, self._marks, strict=True):
            layer.take_back(mark)

    def are_back(self) -> bool:
        """True if no token came since."""
        return all(
            mark is None or layer.cumulative_length == mark.seen
            for layer, mark in zip(self._layers, self._marks, strict=True)
        )

    def check_grown(self) -> None:
        """Raises GraphError unless each has one more token."""
        for layer, mark in zip(self._layers, self._marks, strict=True):
            if mark is None or layer.cumulative_length != mark.seen + 1:
                raise GraphError("attention over a sliding layer of this model goes another way.")
