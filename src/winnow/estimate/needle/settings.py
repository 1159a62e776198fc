"""Settings of an estimation from needles: light to import, because a command line shows the defaults."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from winnow.estimate.errors import NeedleError
from winnow.estimate.seeds import is_seed
from winnow.tasks.prompt_style import USUAL, PromptStyle

LENGTHS = 5
DEPTHS, DEPTHS_ON_CPU = 10, 5
CONTEXT_ON_CPU = 2048
"""The longest prompt where nobody asked for others: a CPU reads about a hundred tokens of a small model a second."""
MAX_NEW_TOKENS = 50
"""As in the published script."""


def default_depths(on_cpu: bool) -> int:
    """Depths where nobody asked for others."""
    return DEPTHS_ON_CPU if on_cpu else DEPTHS


def default_context(context: int, on_cpu: bool) -> int:
    """The longest prompt where nobody asked for others, of a model that reads so many tokens."""
    return min(context, CONTEXT_ON_CPU) if on_cpu else context


class NeedleKind(StrEnum):
    """The heads that are looked for: retrieval, enhanced retrieval, retrieval and reasoning."""

    R = "r"
    ER = "er"
    R2 = "r2"


@dataclass(frozen=True)
class Settings:
    """The scores to estimate, and how many runs they rest on. Raises NeedleError for a seed of more than 64 bits."""

    kind: NeedleKind
    lengths: tuple[int, ...]
    """Tokens of prompt and answer together; 0 is the bare needle with its question."""
    depths: tuple[float, ...]
    """Between 0 (the start) and 1 (the end)."""
    seed: int = 0
    max_new_tokens: int = MAX_NEW_TOKENS
    """Room for an answer, and where it is cut off."""
    style: PromptStyle = USUAL

    def __post_init__(self) -> None:
        if not is_seed(self.seed):
            raise NeedleError(f"A seed must be a whole number of at most 64 bits, not {self.seed}.")


def spread_lengths(context: int, count: int = LENGTHS) -> tuple[int, ...]:
    """`count` lengths from 0 to the context, evenly; fewer where there are not as many whole numbers.

    Raises NeedleError for fewer than two.
    """
    if count < 2:
        raise NeedleError(f"At least two lengths are needed, not {count}.")
    return tuple(dict.fromkeys(round(context * index / (count - 1)) for index in range(count)))


def spread_depths(count: int = DEPTHS) -> tuple[float, ...]:
    """`count` depths from the start to the end, evenly; one alone is in the middle. Raises NeedleError for none."""
    if count < 1:
        raise NeedleError(f"At least one depth is needed, not {count}.")
    return tuple(round(index / (count - 1), 6) for index in range(count)) if count > 1 else (0.5,)
