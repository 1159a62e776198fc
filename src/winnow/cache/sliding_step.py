"""The note that a sliding layer leaves on keys for the attention function.

A window that moves costs a copy of itself for every token, but a ring takes a token as it is, and attends with some on
trial that it does not take yet. The attention function alone knows how the model attends. So keys of such tokens may be
left to it: it adds them to the window, and attends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakSet, ref

from torch import Tensor, nn

from winnow.cache.gradients import check_no_gradients
from winnow.cache.progress import Progress
from winnow.cache.sliding_layer import CompactSlidingLayer, RingMark, SlidingMark
from winnow.cache.window_mask import WindowMask
from winnow.errors import GraphError
from winnow.kernels.interface import AttentionSpec
from winnow.kernels.recording import this_thread

ATTRIBUTE = "_winnow_window"


@dataclass(eq=False, slots=True)
class SlidingToken:
    """Tokens of every row, one or some on trial, that the attention function is to add to a layer's window."""

    layer: CompactSlidingLayer
    progress: Progress
    window: tuple[Tensor, Tensor] | None = None
    """Keys and values that were attended over, where they lie in their order."""
    taken: bool = False


def leave(layer: CompactSlidingLayer, progress: Progress, keys: Tensor) -> None:
    """Notes on keys [R, H, n, D] that the attention function adds them to a layer."""
    setattr(keys, ATTRIBUTE, SlidingToken(layer, progress))


class _Ping(NamedTuple):
    """A note that only shows whether notes of a model arrive."""

    model: ref[nn.Module]


_arriving: WeakSet[nn.Module] = WeakSet()
"""Models whose attention functions get notes of sliding layers."""


def try_notes(model: nn.Module, keys: Tensor) -> None:
    """Leaves a note on keys [R, H, N, D] of a model's sliding layer, so that it shows whether notes arrive."""
    setattr(keys, ATTRIBUTE, _Ping(ref(model)))


def notes_arrive(model: nn.Module | None) -> bool:
    """True if a note of a sliding layer of a model ever arrived."""
    return model is not None and model in _arriving


def over_window(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    spec: AttentionSpec,
    mask: Tensor | None,
    is_plain: bool,
    attend: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Attention [R, Q, Hq, Dv] of queries over keys and values, or over the window that these are left to.

    is_plain: nothing but `spec` and `mask` changes what queries see. attend: over any keys and values. Raises
    CacheError for a query that wants gradients, and GraphError where a recorded step attends otherwise than before.
    """
    note = getattr(keys, ATTRIBUTE, None)
    if isinstance(note, _Ping) and (model := note.model()) is not None:
        _arriving.add(model)
    if not isinstance(note, SlidingToken):
        return attend(keys, values)
    check_no_gradients(query)
    is_plain = is_plain and _tells_no_more(mask, note.layer)
    if note.taken:
        return _once_more(note, query, spec, is_plain, attend)
    output = note.layer.attend(query, keys, values, spec) if is_plain else None
    if output is None:
        if this_thread.recording is not None:
            raise GraphError("attention over a sliding layer of this model goes another way.")
        note.window = note.layer.laid_with(keys, values)
        output = attend(*note.window)
    note.taken = True
    note.progress.leave()
    return output


def _tells_no_more(mask: Tensor | None, layer: CompactSlidingLayer) -> bool:
    """True for the mask of a layer's window, which a ring keeps by itself."""
    return mask is None or (isinstance(mask, WindowMask) and mask.window == layer.sliding_window)


def _once_more(
    note: SlidingToken,
    query: Tensor,
    spec: AttentionSpec,
    is_plain: bool,
    attend: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Attention of another layer over the window of the one that it shares keys and values with."""
    if note.window is None:
        output = note.layer.attend_again(query, spec) if is_plain else None
        if output is not None:
            return output
        note.window = note.layer.all_in_order()
    return attend(*note.window)


class Windows:
    """Sliding layers of a cache before a token."""

    def __init__(self, layers: list[CompactSlidingLayer]) -> None:
        self._layers = layers
        self._marks: list[SlidingMark | RingMark | None] = [layer.mark() for layer in layers]

    def take_back(self) -> None:
        """Puts all of them back."""
        for layer, mark in zip(self._layers, self._marks, strict=True):
            layer.take_back(mark)

    def are_back(self) -> bool:
        """True if no token came since."""
        return not any(self._came())

    def check_grown(self, count: int) -> None:
        """Raises GraphError unless each has so many more tokens."""
        if any(came != count for came in self._came()):
            raise GraphError("attention over a sliding layer of this model goes another way.")

    def _came(self) -> list[int]:
        return [layer.came_since(mark) for layer, mark in zip(self._layers, self._marks, strict=True)]
