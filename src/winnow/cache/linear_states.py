"""The states of linear and convolution layers, which every token changes in place and no token can be taken out of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin, LinearAttentionLayer

from winnow.cache.writable import writable
from winnow.errors import GraphError


class KeptState(NamedTuple):
    """A state as it was, and where its layer keeps it."""

    states: dict[int, Tensor]
    number: int
    tensor: Tensor
    copied: Tensor


class LinearStates:
    """The states of a cache's layers."""

    def __init__(self, layers: Iterable[CacheLayerMixin]) -> None:
        self._layers = [layer for layer in layers if isinstance(layer, LinearAttentionLayer)]

    def __bool__(self) -> bool:
        """True if there are layers with such states."""
        return bool(self._layers)

    def tensors(self) -> tuple[Tensor, ...]:
        """The memory in which they are."""
        return tuple(states[index] for states, index in self._places())

    def convolved(self) -> list[Tensor]:
        """Those of convolutions, [R, C, L] each: their last inputs."""
        return [state for layer in self._layers for state in layer.conv_states.values() if state is not None]

    def recurrent(self) -> list[Tensor]:
        """All others."""
        return [state for layer in self._layers for state in layer.recurrent_states.values() if state is not None]

    def make_writable(self) -> None:
        """Has those that were made in inference mode be changed outside it, too."""
        for states, index in self._places():
            if states[index].is_inference():
                with writable():
                    states[index] = states[index].clone()

    def mark(self, earlier: Sequence[KeptState] = ()) -> list[KeptState]:
        """All of them as they are, for `take_back`.

        earlier: a mark that is of no more use, whose memory serves again.
        """
        kept = []
        for number, (states, index) in enumerate(self._places()):
            state = states[index]
            if number < len(earlier) and earlier[number].copied.shape == state.shape:
                copied = earlier[number].copied.copy_(state)
            else:
                copied = state.clone()
            kept.append(KeptState(states, index, state, copied))
        return kept

    def take_back(self, mark: list[KeptState]) -> None:
        """Puts all of them back, where they were."""
        for kept in mark:
            kept.tensor.copy_(kept.copied)
            kept.states[kept.number] = kept.tensor

    def are_as(self, mark: Sequence[KeptState]) -> bool:
        """True if all of them are, to the bit, as they were."""
        return all(torch.equal(kept.tensor, kept.copied) for kept in mark)

    def check_in_place(self, mark: list[KeptState]) -> None:
        """Raises GraphError where other tensors have come into their places."""
        tensors = self.tensors()
        if len(tensors) != len(mark) or any(a is not b.tensor for a, b in zip(tensors, mark, strict=True)):
            raise GraphError("linear layers of this model do not change their states in place.")

    def _places(self) -> Iterator[tuple[dict[int, Tensor], int]]:
        for layer in self._layers:
            yield from _places_in(layer)


def join_states(layer: LinearAttentionLayer, others: Sequence[LinearAttentionLayer]) -> None:
    """Adds the rows of other layers' states behind those of a layer, which has the same ones."""
    pairs = zip(_places_in(layer), *map(_places_in, others), strict=True)
    joined = [torch.cat([states[index] for states, index in places]) for places in pairs]
    for (states, index), state in zip(_places_in(layer), joined, strict=True):
        states[index] = state


def _places_in(layer: LinearAttentionLayer) -> Iterator[tuple[dict[int, Tensor], int]]:
    """Dictionaries of a layer and keys, behind which there are states."""
    for states in (layer.conv_states, layer.recurrent_states):
        yield from ((states, index) for index, state in states.items() if state is not None)
