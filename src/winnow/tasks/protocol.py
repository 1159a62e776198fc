"""A protocol: everything about how a benchmark is put to a model that changes its numbers, under one name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class HeldOut:
    """Examples of every task that knobs are tuned on."""

    share: float
    """Share of a task's contexts."""
    tested: bool = False
    """True where the published rows are of all examples, those for tuning included."""


FOR_PEOPLE = ("summary", "source", "benchmarks", "full_rows", "validation")
"""Fields of a protocol that decide no result."""


@dataclass(frozen=True)
class Protocol:
    """Results of different protocols are never put in one table."""

    name: str
    summary: str
    """One line for lists."""
    benchmarks: tuple[str, ...]
    """Names of benchmarks that it is for; none for any."""
    chat_template: bool
    """True: the model's own, where it has one, except for tasks that are plain text by definition."""
    question_seen: bool
    """True: the question is part of the prompt when it is compressed."""
    max_prompt_tokens: int | None = None
    """Longer prompts lose their middle: first and last half stay. None: as much as the model can read."""
    model_limits: Mapping[str, int | None] = field(default_factory=dict)
    """The same for models that the source names, by a part of their name in lower case; the longest that fits holds.
    None cuts nothing."""
    lengths: tuple[int, ...] = ()
    """Tokens of the prompts that it is about, for benchmarks that are generated; none: any."""
    validation: HeldOut | None = None
    """Examples that are held out for tuning; None where nobody says that there are such."""
    source: str = ""
    """The paper, table and code that it follows."""
    full_rows: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Published scores of the full cache, 0 to 100, by model and task."""

    def prompt_limit(self, model: str) -> int | None:
        """Tokens of a prompt of a model, by its name, at most; None: as much as it can read."""
        named = [part for part in self.model_limits if part in model.lower()]
        return self.model_limits[max(named, key=len)] if named else self.max_prompt_tokens
