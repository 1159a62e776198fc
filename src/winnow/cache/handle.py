"""The note that a cache layer leaves on a key tensor for the attention function.

transformers passes `past_key_values` to a layer's `update`, but not to its attention function. What does
travel is the key tensor that `update` returns, so the layer leaves a note on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from torch import Tensor, nn

from winnow.kernels.interface import AttentionSpec, DecodePlan

ATTRIBUTE = "_winnow_handle"


class Phase(Enum):
    """The attention function's task for the keys and values that come with a handle."""

    PROMPT = "the whole prompt, dense: attend, then compress"
    PART = "a part of a prompt that goes on: attend over what has come so far, and keep it dense"
    REPLAY = "a part of a waiting prompt, read again: attend behind the prompt, let a scorer listen, keep nothing"
    TAIL = "new tokens only: append them, then attend over prefix and tail"


class Attended(Protocol):
    """Prefixes and dense tokens of a layer, as kernels attend over them."""

    def plan(self, spec: AttentionSpec) -> DecodePlan: ...
    def row_plan(self, row: int, spec: AttentionSpec) -> DecodePlan: ...


class AttendedLayer(Protocol):
    """The side of a layer that the attention function sees; `CompressedLayer` documents each method."""

    spec: AttentionSpec | None

    def attended_by(self, attention: nn.Module, spec: AttentionSpec) -> None: ...
    def finish_prompt(self, queries: Tensor, keys: Tensor, values: Tensor, valid: Tensor | None) -> None: ...
    def finish_part(self, queries: Tensor, length: int, valid: Tensor | None) -> None: ...
    def finish_replay(self, queries: Tensor, keys: Tensor, values: Tensor) -> None: ...
    def check_positions(self, positions: Tensor | None, valid: Tensor | None) -> None: ...
    def append(self, queries: Tensor, keys: Tensor, values: Tensor, valid: Tensor | None) -> Attended: ...
    def finish(self) -> None: ...
    def give_up(self) -> None: ...


@dataclass(eq=False)
class Handle:
    """One `update` of one layer, until the attention function has taken it up."""

    layer: AttendedLayer
    phase: Phase
    new_tokens: int
    earlier: int = 0
    """Tokens that the layer held before."""
    taken: bool = False
    over: Attended | None = None
    """All that new tokens attend over, once the layer has them."""


def attach(keys: Tensor, handle: Handle) -> Tensor:
    """A tensor object of its own over the same memory, carrying the handle."""
    noted = keys.view(keys.shape)
    setattr(noted, ATTRIBUTE, handle)
    return noted


def handle_of(keys: Tensor) -> Handle | None:
    """The handle that a key tensor carries, if it comes from a compressed layer."""
    handle: Handle | None = getattr(keys, ATTRIBUTE, None)
    return handle
