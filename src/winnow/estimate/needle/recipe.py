"""A worker for needle runs, and its recipe for another process."""

from __future__ import annotations

from dataclasses import dataclass

from winnow.estimate.executors.base import Worker
from winnow.estimate.needle.plan import NeedlePlan
from winnow.estimate.needle.run import needle_worker
from winnow.estimate.records import NeedleRecord
from winnow.models import ModelSpec


@dataclass(frozen=True)
class NeedleRecipe:
    """Everything that runs depend on, small enough to be sent."""

    model: ModelSpec
    plan: NeedlePlan
    chunk_size: int | None = None

    def prepare(self) -> Worker[NeedleRecord]:
        """Loads the model. Raises ModelError where that fails."""
        model, _ = self.model.load()
        return needle_worker(model, self.plan, self.chunk_size)
