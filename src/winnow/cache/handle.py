"""How a cache layer speaks to the attention function.

transformers passes `past_key_values` to a layer's `update`, but not to its attention function. What does
travel is the key tensor that `update` returns, so the layer leaves a note on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from winnow.cache.layer import CompressedLayer

ATTRIBUTE = "_winnow_handle"


class Phase(Enum):
    """What the attention function has to do with the keys and values that come with a handle."""

    PROMPT = "the whole prompt, dense: attend, then compress"
    PART = "a part of a prompt that goes on: attend over what has come so far, and keep it dense"
    TAIL = "new tokens only: append them, then attend over prefix and tail"


@dataclass(eq=False)
class Handle:
    """One `update` of one layer, until the attention function has taken it up."""

    layer: CompressedLayer
    phase: Phase
    new_tokens: int
    taken: bool = False


def attach(keys: Tensor, handle: Handle) -> Tensor:
    """A tensor object of its own over the same memory, carrying the handle."""
    noted = keys.view(keys.shape)
    setattr(noted, ATTRIBUTE, handle)
    return noted


def handle_of(keys: Tensor) -> Handle | None:
    """The handle that a key tensor carries, if it comes from a compressed layer."""
    handle: Handle | None = getattr(keys, ATTRIBUTE, None)
    return handle
