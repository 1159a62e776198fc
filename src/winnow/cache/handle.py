"""The note that a cache layer leaves on a key tensor for the attention function.

transformers gives a cache to an attention module, but not to its attention function. What does travel is the key tensor
that a layer's `update` returns, so the layer leaves a note on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from torch import Tensor, nn

from winnow.kernels.interface import AttentionPlan, AttentionSpec
from winnow.models.carrier import NOTE, note_of


class Phase(Enum):
    """The attention function's task for the keys and values that come with a handle."""

    PROMPT = "the whole prompt, dense: attend, then compress"
    PART = "a part of a prompt that goes on: attend over what has come so far, and keep it dense"
    REPLAY = "a part of a waiting prompt, read again: attend behind the prompt, let a scorer listen, keep nothing"
    TAIL = "new tokens only: append them, then attend over prefix and tail"


class Attended(Protocol):
    """Prefixes and dense tokens of a layer, as kernels attend over them."""

    def plan(self, spec: AttentionSpec) -> AttentionPlan: ...
    def row_plan(self, row: int, spec: AttentionSpec) -> AttentionPlan: ...


class AttendedLayer(Protocol):
    """The side of a layer that the attention function sees; `CompressedLayer` documents each method."""

    spec: AttentionSpec | None

    @property
    def sums_attention(self) -> bool: ...
    def attended_by(self, attention: nn.Module, spec: AttentionSpec) -> None: ...
    def finish_prompt(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid: Tensor | None, paid: Tensor | None
    ) -> None: ...
    def finish_part(self, queries: Tensor, length: int, valid: Tensor | None, paid: Tensor | None) -> None: ...
    def finish_replay(self, queries: Tensor, keys: Tensor, values: Tensor) -> None: ...
    def settle(self) -> None: ...
    def check_positions(self, positions: Tensor | None, valid: Tensor | None) -> None: ...
    def append(self, queries: Tensor, keys: Tensor, values: Tensor, valid: Tensor | None) -> Attended: ...
    def attend_token(
        self,
        handle: Handle,
        attention: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor | None: ...
    def attended_over(self, query: Tensor) -> None: ...
    def finish(self) -> None: ...
    def give_up(self) -> None: ...


@dataclass(eq=False, slots=True)
class Handle:
    """One `update` of one layer, until the attention function has taken it up."""

    layer: AttendedLayer
    phase: Phase
    new_tokens: int
    earlier: int = 0
    """Tokens that the layer held before."""
    behind: int = 0
    """New tokens that come behind a prompt whose end is known, and are none of it: candidates of assisted decoding."""
    taken: bool = False
    over: Attended | None = None
    """All that new tokens attend over, once the layer has them."""
    values: Tensor | None = None
    """Those that came with the keys, where this is a token as those before it, until it was attended to."""
    is_expanded: bool = False
    """True for such a token of latents: its values are none that came, but what the model makes of latents."""
    is_unseen: bool = False
    """True where nobody looks at the keys and values that the model makes of latents."""

    def let_go(self) -> None:
        """Ends the handle: nobody will take it up, and it keeps nothing alive."""
        self.over = None
        del self.layer


def attach(keys: Tensor, handle: Handle) -> Tensor:
    """A tensor object of its own over the same memory, carrying the handle."""
    # Without gradients to pass on, the cheapest of the two.
    noted = keys.view(keys.shape) if keys.requires_grad else keys.detach()
    setattr(noted, NOTE, handle)
    return noted


def handle_of(keys: Tensor) -> Handle | None:
    """The handle that a key tensor carries, if it comes from a compressed layer."""
    handle: Handle | None = note_of(keys)
    return handle
