"""The method of a context that was read from a file: what it was called, not the means to choose again.

What a method chose is in the file. Choosing again would need its scorer, which may be the user's own, and its head
scores, which may be gone or changed since; a method that was rebuilt from its name could differ without a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, NoReturn

from torch import Tensor

from winnow.allocate import Allocation, Allocator, SlotPlan
from winnow.budget import Budget
from winnow.cache.facts import MethodFacts
from winnow.composition.method import Method
from winnow.errors import CacheError
from winnow.heads import HeadScores
from winnow.score import Scorer
from winnow.store import Dense
from winnow.view import LayerView


def describe(method: Method) -> MethodFacts:
    """Facts that a file keeps of a method; of one that comes from a file, those that it kept."""
    if isinstance(method.scorer, RecordedScorer):
        return method.scorer.told
    tables = _tables((method.scorer, method.allocator, method.store))
    return MethodFacts(
        name=method.name,
        budget=str(method.budget),
        takes_budget=method.allocator.takes_budget,
        head_scores=[{**table.facts(), "shape": list(table.shape)} for table in tables],
    )


def recorded(described: MethodFacts) -> Method:
    """A method of the same name and budget that refuses to compress anything."""
    budget, name = described.budget, described.name
    return Method(
        name,
        RecordedScorer(described),
        RecordedAllocator(name, described.takes_budget),
        Dense(),
        Budget.parse(None if budget == "everything" else budget),
    )


@dataclass(frozen=True)
class RecordedScorer(Scorer):
    """Scores nothing."""

    told: MethodFacts = field(hash=False)

    def __call__(self, view: LayerView) -> Tensor:
        """Refused."""
        _refuse(self.told.name)


@dataclass(frozen=True)
class RecordedAllocator(Allocator):
    """Divides nothing."""

    name: str
    budgeted: bool

    @property
    def takes_budget(self) -> bool:
        """As the allocator that was used."""
        return self.budgeted

    def layer_totals(self, plan: SlotPlan) -> list[int]:
        """Refused."""
        _refuse(self.name)

    def head_slots(self, scores: Tensor, allocation: Allocation, layer: int) -> Tensor:
        """Refused."""
        _refuse(self.name)


def _refuse(name: str) -> NoReturn:
    raise CacheError(
        f"this cache comes from a file, which has only the name of its method, {name!r}, and cannot compress another "
        "prompt: make a new CompressedCache for that."
    )


def _tables(part: Any) -> Iterator[HeadScores]:
    """Head scores anywhere inside the parts of a method."""
    if isinstance(part, HeadScores):
        yield part
    elif isinstance(part, tuple):
        for each in part:
            yield from _tables(each)
    elif is_dataclass(part):
        for each in fields(part):
            yield from _tables(getattr(part, each.name))
