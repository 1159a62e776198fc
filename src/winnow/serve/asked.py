"""A request on its way through the engine, and what it is told meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from winnow.evaluate.sampling import Sampling
from winnow.serve.beginnings import Beginning, Prompt
from winnow.serve.grammars import Grammar
from winnow.serve.refusals import Refused

Reason = Literal["stop", "length"]


class Begun(NamedTuple):
    """The prompt was read."""

    prompt_tokens: int
    held_tokens: int
    """Those of it that did not have to be read, as a conversation, a document or a shared start held them."""


class Said(NamedTuple):
    """Some more words."""

    text: str
    number: int = 0
    """Number of the answer among those to one prompt."""
    special: bool = False
    """True for a special token, which may mark a call and is no word."""


class Costs(NamedTuple):
    """Bytes and seconds of an answer."""

    method: str
    held_bytes: int
    """By its row at the end."""
    full_bytes: int
    """Those that the whole cache would hold."""
    waited_seconds: float
    """Until its turn came."""
    read_seconds: float
    """From then to the prompt's last token, with steps of others in between."""
    answer_seconds: float


class Finished(NamedTuple):
    """An answer is whole."""

    reason: Reason
    tokens: int
    costs: Costs
    number: int = 0
    """Number of the answer among those to one prompt."""
    cut: bool = False
    """True if a text or the length ended it, and not the model."""


class Failed(NamedTuple):
    """There are no answers, or no more of them."""

    problem: Refused


Event = Begun | Said | Finished | Failed


@dataclass(eq=False)
class Asked:
    """A prompt with the way in which it is to be answered."""

    beginning: Beginning
    prompt: Prompt
    sampling: Sampling
    max_new_tokens: int
    stops: tuple[str, ...]
    tell: Callable[[Event], None]
    """Called in the engine's thread."""
    answers: int = 1
    """Answers to the one prompt."""
    grammar: Grammar | None = None
    """The grammar of each of them; None for any text."""
    canceled: bool = field(default=False)
    """True once nobody waits for the answers any more."""
