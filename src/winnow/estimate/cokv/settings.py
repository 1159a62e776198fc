"""Settings of an estimation from coalitions: light to import, because a command line shows the defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from winnow.estimate.errors import ShapleyError
from winnow.metrics import DEFAULT_METRIC
from winnow.tasks.prompt_style import USUAL, PromptStyle

QUESTIONS = 24
"""Generated validation examples."""
QUESTION_TOKENS = 512
"""Prompt and answer of a generated example, at most."""
WINDOW = 8
"""Tokens that a head outside the coalition keeps, as in the paper's experiments."""
MAX_NEW_TOKENS = 24
PAIRS = 32
"""Complementary pairs that are decoded side by side."""
DELTA = 0.05
"""The chance that a score is further off than the bound of Theorem 2."""
OVERLAP = 2 / 3
"""The paper's rule (App. E.3): enough samples when two independent runs share so much of their top 50%."""


class Terms(NamedTuple):
    """All that, besides model and examples, decides what a coalition is worth."""

    window: int = WINDOW
    max_new_tokens: int = MAX_NEW_TOKENS
    chunk_size: int | None = None
    """Tokens prefilled at a time; None for the whole prompt."""
    style: PromptStyle = USUAL
    metric: str = DEFAULT_METRIC
    """Name of the metric that says what an answer is worth."""

    def config(self) -> dict[str, Any]:
        """The terms under the names that journals have for them; those of earlier versions know no metric."""
        return {
            "window": self.window,
            "answer_tokens": self.max_new_tokens,
            "chunk": self.chunk_size,
            **self.style.named_facts(),
            **({} if self.metric == DEFAULT_METRIC else {"metric": self.metric}),
        }


@dataclass(frozen=True)
class StopRule:
    """The number of samples, or an agreement, that ends an estimation.

    Raises ShapleyError for fewer than one sample, and for an overlap outside (0, 1].
    """

    samples: int
    """Splits at most, rounded up to whole batches."""
    overlap: float | None = None
    """Stop earlier, when the two halves share this much of their top 50%; None: take all samples."""

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ShapleyError(f"samples must be at least 1, not {self.samples}.")
        if self.overlap is not None and not 0 < self.overlap <= 1:
            raise ShapleyError(f"overlap must be above 0 and at most 1, not {self.overlap}.")
