"""Allocators that know every head's slots before they see a prompt: from a table of head scores."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from winnow.allocate.base import Allocation, Allocator, Plan
from winnow.allocate.rounding import full_tensor, round_exactly
from winnow.bundled import NAME, is_bundled
from winnow.errors import MethodError
from winnow.heads import HeadScores, read_scores
from winnow.heads.shipped import shipped_scores
from winnow.parameters import meaning

_LEAST_WEIGHT = 1e-9
"""Share of the largest weight that a head without any takes of what the others cannot hold."""


@dataclass(frozen=True)
class TableAllocator(Allocator):
    """Gives slots by head scores [L, H], one row per compressed layer.

    Without scores, those that come with Winnow for the model are taken when a cache is made. Raises HeadScoresError for
    a file that cannot be read, MethodError for scores of another kind than `expects` or of another shape than the
    model's.
    """

    scores: HeadScores | None = field(
        default=None,
        metadata=meaning("head scores of the model: a file, or a winnow.HeadScores; none for those shipped with it"),
    )
    expects: str = field(default="", kw_only=True)
    """The only `HeadScores.method` that is accepted; empty for any."""

    def __post_init__(self) -> None:
        if isinstance(self.scores, str | Path):
            object.__setattr__(self, "scores", read_scores(self.scores))
        if self.scores is not None and not isinstance(self.scores, HeadScores):
            raise MethodError(
                f"{type(self).__name__}: scores must be a file of head scores or a winnow.HeadScores, "
                f"not {self.scores!r}."
            )
        if self.scores is not None and self.expects not in ("", self.scores.method):
            raise MethodError(
                f"{self.scores} holds {self.scores.method!r} scores where {self.expects!r} scores are expected; give "
                f"another file, or combine parts yourself, as in 'snapkv+headkv' or 'snapkv+shapley'."
            )

    @abstractmethod
    def slots(self, plan: Plan) -> Tensor:
        """Slots of every head [L, H] int64, each in [plan.guaranteed, plan.length]."""

    def table(self) -> HeadScores:
        """The head scores. Raises MethodError where there are none."""
        if self.scores is None:
            raise MethodError(self._lacking("the model"))
        return self.scores

    def for_model(self, name: str, heads: tuple[int, ...]) -> Allocator:
        known = self.scores or (shipped_scores(name, self.expects) if self.expects else None)
        if known is None:
            raise MethodError(self._lacking(name or "this model"))
        ready = replace(self, scores=known)
        ready._check_shape(heads)
        if known.model and name and _called(known.model) != _called(name):
            warnings.warn(f"The head scores are those of {known.model}, the model is {name}.", stacklevel=4)
        return ready

    def _lacking(self, model: str) -> str:
        kind = f"{self.expects!r} " if self.expects else ""
        return (
            f"{type(self).__name__} needs {kind}head scores of {model}: give scores=FILE. `winnow heads` estimates, "
            "shows and converts them."
        )

    def layer_totals(self, plan: Plan) -> list[int]:
        self._check_shape(plan.heads)
        totals: list[int] = _slots(self, plan).sum(dim=1).tolist()
        return totals

    def head_slots(self, scores: Tensor, allocation: Allocation, layer: int) -> Tensor:
        return _slots(self, allocation.plan)[layer]

    def _check_shape(self, heads: tuple[int, ...]) -> None:
        table = self.table()
        layers, per_layer = table.shape
        if heads == (per_layer,) * layers and table.heads == "kv":
            return
        model = f"{len(heads)} compressed layers with {' or '.join(map(str, sorted(set(heads))))} KV heads"
        given = f"{layers} layers with {per_layer} {'KV' if table.heads == 'kv' else 'query'} heads"
        fits = len(set(heads)) == 1 and layers == len(heads) and per_layer % heads[0] == 0
        remedy = f"average its groups with scores.grouped({heads[0]})" if fits else "give scores of this model"
        raise MethodError(f"{table} has {given}, the model {model}; {remedy}.")


def divide(plan: Plan, shares: Tensor, weights: Tensor) -> Tensor:
    """Whole slots [L, H] from real shares [L, H] outside the guaranteed ones, summing to plan.slots.

    What a head cannot hold beyond the prompt's length goes to the others in proportion to their weights [L, H].
    """
    count = shares.numel()
    low, high = full_tensor(count, plan.guaranteed), full_tensor(count, plan.length)
    weights = weights.flatten().clamp(min=_LEAST_WEIGHT * float(weights.max()))
    slots = round_exactly(plan.guaranteed + shares.flatten(), plan.slots, low, high, weights)
    return slots.view(shares.shape)


def mean_outside(plan: Plan) -> int:
    """b as the published code has it: whole slots per head on average, without the guaranteed ones."""
    return max(0, plan.slots // sum(plan.heads) - plan.guaranteed)


def add_guaranteed(plan: Plan, published: Tensor) -> Tensor:
    """Published slots [L, H] with the guaranteed ones; what exceeds the prompt is lost, as it is there."""
    return (published.long() + plan.guaranteed).clamp(plan.guaranteed, plan.length)


def highest(scores: Tensor, count: int) -> Tensor:
    """[L, H] bool: the `count` heads of the highest scores; equal scores go to the lower layer and head."""
    chosen = torch.zeros(scores.numel(), dtype=torch.bool)
    chosen[torch.argsort(scores.flatten(), descending=True, stable=True)[:count]] = True
    return chosen.view(scores.shape)


@lru_cache(maxsize=64)
def _slots(allocator: TableAllocator, plan: Plan) -> Tensor:
    """Every layer of a prompt asks for the same, hence the cache."""
    return allocator.slots(plan)


def _called(name: str) -> str:
    """A model's name without folders or owner, in lower case."""
    return NAME if is_bundled(name) else name.replace("\\", "/").rstrip("/").rpartition("/")[2].lower()
