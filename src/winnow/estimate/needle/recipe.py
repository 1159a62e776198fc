"""A worker for needle runs, and its recipe for another process."""

from __future__ import annotations

from dataclasses import dataclass

import transformers

from winnow.estimate.executors.base import Worker
from winnow.estimate.needle.plan import NeedlePlan
from winnow.estimate.needle.run import needle_worker
from winnow.estimate.records import NeedleRecord
from winnow.models import load_model, open_model


@dataclass(frozen=True)
class NeedleRecipe:
    """Everything that runs depend on, small enough to be sent."""

    model: str
    """Directory or Hugging Face name."""
    device: str
    dtype: str
    plan: NeedlePlan
    chunk_size: int | None = None
    weights: str = "auto"

    def prepare(self) -> Worker[NeedleRecord]:
        """Loads the model. Raises ModelError where that fails."""
        transformers.logging.disable_progress_bar()
        source = open_model(self.model)
        return needle_worker(
            load_model(source, self.device, self.dtype, weights=self.weights), self.plan, self.chunk_size
        )
