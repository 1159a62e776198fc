"""Allocators that plan every head's slots by a table of head scores."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from winnow.allocate.base import Allocator, SlotPlan
from winnow.allocate.planned import PlannedAllocator
from winnow.allocate.rounding import LEAST_WEIGHT, full_tensor, round_exactly
from winnow.errors import MethodError
from winnow.heads import HeadScores
from winnow.heads.resolve import check_shape, given_scores, scores_of_model
from winnow.parameters import meaning


@dataclass(frozen=True)
class TableAllocator(PlannedAllocator):
    """Gives slots by head scores [L, H], one row per compressed layer.

    Without scores, a cache takes those that Winnow ships for the model. Raises HeadScoresError for a file that cannot
    be read, and MethodError for scores of another kind than `expects` or another shape than the model's.
    """

    scores: HeadScores | None = field(
        default=None,
        metadata=meaning("head scores of the model: a file or a winnow.HeadScores; none: those shipped with Winnow"),
    )
    expects: str = field(default="", kw_only=True)
    """The only `HeadScores.method` that is accepted; empty for any."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "scores", given_scores(self.scores, type(self).__name__))
        if self.scores is not None and self.expects not in ("", self.scores.method):
            raise MethodError(
                f"{self.scores} holds {self.scores.method!r} scores, but {self.expects!r} scores are expected; give "
                f"another file, or combine parts yourself, as in 'snapkv+headkv' or 'snapkv+cokv'."
            )

    @property
    def head_scores(self) -> HeadScores | None:
        return self.scores

    def table(self) -> HeadScores:
        """The head scores. Raises MethodError where there are none."""
        if self.scores is None:
            raise MethodError(self._lacking("the model"))
        return self.scores

    def for_model(self, name: str, heads: tuple[int, ...]) -> Allocator:
        return replace(self, scores=scores_of_model(self.scores, self.expects, name, heads, self._lacking(name)))

    def _lacking(self, model: str) -> str:
        kind = f"{self.expects!r} " if self.expects else ""
        return (
            f"{type(self).__name__} needs {kind}head scores of {model or 'this model'}: give scores=FILE. `winnow "
            "heads` estimates, shows and converts them."
        )

    def layer_totals(self, plan: SlotPlan) -> list[int]:
        check_shape(self.table(), plan.heads)
        return super().layer_totals(plan)


def divide(plan: SlotPlan, shares: Tensor, weights: Tensor) -> Tensor:
    """Whole slots [L, H] from real shares [L, H] outside the guaranteed ones, summing to plan.slots.

    What a head cannot hold beyond the prompt's length goes to the others in proportion to their weights [L, H].
    """
    count = shares.numel()
    low, high = full_tensor(count, plan.guaranteed), full_tensor(count, plan.length)
    weights = weights.flatten().clamp(min=LEAST_WEIGHT * float(weights.max()))
    slots = round_exactly(plan.guaranteed + shares.flatten(), plan.slots, low, high, weights)
    return slots.view(shares.shape)


def mean_outside(plan: SlotPlan) -> int:
    """b as the published code has it: whole slots per head on average, without the guaranteed ones."""
    return max(0, plan.slots // sum(plan.heads) - plan.guaranteed)


def add_guaranteed(plan: SlotPlan, published: Tensor) -> Tensor:
    """Published slots [L, H] with the guaranteed ones; what exceeds the prompt is lost, as it is there."""
    return (published.long() + plan.guaranteed).clamp(plan.guaranteed, plan.length)
