"""A worker for items of coalitions, and how another process makes one."""

from __future__ import annotations

from dataclasses import dataclass

import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from winnow.estimate.cokv.plan import Plan
from winnow.estimate.cokv.utility import CoalitionUtility, Example, Terms
from winnow.estimate.executors import Item, Worker
from winnow.models import load_model, open_model


@dataclass(frozen=True)
class CoalitionRecipe:
    """Everything that the utilities depend on, small enough to be sent."""

    model: str
    """Directory or Hugging Face name."""
    device: str
    dtype: str
    heads: int
    """KV heads of every compressed layer."""
    examples: tuple[Example, ...]
    terms: Terms
    plan: Plan

    def prepare(self) -> Worker:
        """Loads the model. Raises ModelError where that fails."""
        transformers.logging.disable_progress_bar()
        source = open_model(self.model)
        return self.worker(load_model(source, self.device, self.dtype), source.tokenizer)

    def worker(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Worker:
        """The same with a model that is loaded already."""
        utility = CoalitionUtility(model, tokenizer, self.examples, self.terms)

        def evaluate(item: Item) -> list[float]:
            masks = self.plan.coalitions(item.batch)
            return utility(item.example, masks.unflatten(1, (-1, self.heads)))

        return evaluate
