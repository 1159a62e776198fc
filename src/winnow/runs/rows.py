"""A row: the result of one example under one method, as a run's folder keeps it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from winnow.typed import Between, Sized

K = TypeVar("K", bound=Hashable)
Share = Annotated[float, Between(0.0, 1.0)]
Count = Annotated[int, Between(0, 2**63 - 1)]
Seconds = Annotated[float, Between(0.0, 1e12)]


@dataclass(frozen=True)
class Row:
    """A cell and what came of it."""

    cell: str
    """Hash of everything that the result depends on."""
    benchmark: str
    task: str
    example: str
    content: str
    """Hash of the example's texts: pairs of rows are about the same example where it is equal."""
    context: str
    """Hash of its context alone, which several examples may share."""
    method: str
    """Text that `winnow.method` reads, budget included: "adakv @ 10%", "full"."""
    scores: Annotated[dict[str, float], Sized(1)]
    """By measure (see `winnow.runs.measures`); the first one is the task's own."""
    prediction: str
    """The answer of the model; empty for tasks that probabilities decide."""
    answers: Annotated[list[str], Sized(0, 10_000)]
    facts: dict[str, Any]
    """As of the example: length, depth, …"""
    truncated: bool
    """True if the prompt lost its middle."""
    prompt_tokens: Count
    new_tokens: Count
    held_bytes: Count
    """Bytes of this sequence's cache after compression and before the answer."""
    full_bytes: Count
    """Bytes of transformers' own cache for the same tokens."""
    slots: Annotated[float, Between(0.0, 1e15)]
    """Kept prompt tokens per KV head, mean over heads and layers."""
    prefill_seconds: Seconds
    """Time of the whole prompt, compression included; what several methods share counts in full for each."""
    compress_seconds: Seconds
    decode_steps: Count
    decode_seconds: Seconds
    """This sequence's share of the batch it was decoded in."""
    together: Annotated[int, Between(1, 2**31)] = 1
    """Methods whose answers were decoded side by side: with several the share tells nothing of one of them."""
    kept: list[list[Count]] = field(default_factory=list)
    """Kept prompt tokens of every compressed layer and KV head; empty where nobody noted them."""
    question: str = ""
    """The end of what was asked, for people who read answers; empty where nobody noted it."""
    environment: dict[str, str] = field(default_factory=dict)
    """Machine and versions behind its times (see `winnow.runs.environment`); empty where nobody noted it."""

    @property
    def measure(self) -> str:
        """The main measure of the row's task."""
        return next(iter(self.scores))


def rows_by(rows: Iterable[Row], key: Callable[[Row], K]) -> dict[K, list[Row]]:
    """Rows by a key, in the order in which keys come."""
    found: dict[K, list[Row]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return dict(found)


def shared_contexts(rows: Iterable[Row]) -> Sequence[str] | None:
    """The context of every row, to be drawn together; None for a single one, from which nothing can be drawn."""
    names = [row.context for row in rows]
    return names if len(set(names)) > 1 else None


def method_and_budget(text: str) -> tuple[str, str]:
    """The text of a method, as rows have it, in two: "adakv @ 10%" -> ("adakv", "10%"), "full" -> ("full", "")."""
    # The last one, unless it is in an argument: files of head scores may have it in their names.
    method, at, budget = text.rpartition(" @ ")
    return (method, budget) if at and ")" not in budget else (text, "")
