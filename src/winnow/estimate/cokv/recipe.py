"""A worker for items of coalitions, and its recipe for another process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from winnow.estimate.cokv.examples import ValidationExample
from winnow.estimate.cokv.plan import CoalitionPlan
from winnow.estimate.cokv.prefilled import PromptMemory
from winnow.estimate.cokv.settings import Terms
from winnow.estimate.cokv.utility import CoalitionUtility
from winnow.estimate.executors.base import Item, Worker
from winnow.models import ModelSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class CoalitionRecipe:
    """Everything that the utilities depend on, small enough to be sent."""

    model: ModelSpec
    heads: int
    """KV heads of every compressed layer."""
    examples: tuple[ValidationExample, ...]
    terms: Terms
    plan: CoalitionPlan
    memory: PromptMemory = field(default_factory=PromptMemory)

    def prepare(self) -> Worker[list[float]]:
        """Loads the model. Raises ModelError where that fails."""
        return self.worker(*self.model.load())

    def worker(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Worker[list[float]]:
        """The same with a model that is loaded already."""
        utility = CoalitionUtility(model, tokenizer, self.examples, self.terms, self.memory)

        def evaluate(item: Item) -> list[float]:
            masks = self.plan.coalitions(item.batch)
            return utility(item.example, masks.unflatten(1, (-1, self.heads)))

        return evaluate
