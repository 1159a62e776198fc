"""Weights that an earlier version's journal does not name, recognized by a run that is made again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from winnow.estimate.errors import JournalError
from winnow.estimate.needle.plan import NeedlePlan
from winnow.estimate.needle.run import KnownRuns, Outcome, make_run
from winnow.estimate.needle.settings import NeedleKind
from winnow.models.dtypes import written_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_RELATIVE, _ABSOLUTE = 1e-3, 1e-5
"""Scores of the same weights differ by the order of sums alone, which threads and instruction sets decide."""


def check_weights(model: PreTrainedModel, plan: NeedlePlan, known: KnownRuns, chunk_size: int | None = None) -> None:
    """Makes the shortest right run of a journal again that has no fingerprint of the weights.

    Raises JournalError where the result is another one; where nothing tells, because no run was right, or because Eq. 1
    gives other weights the same few numbers; for weights of less than 32 bits, whose logits earlier versions rounded.
    """
    if not known.outcomes:
        return
    path = known.journal.path
    if model.dtype.itemsize < torch.float32.itemsize:
        raise _refused(path, f"scores in {written_dtype(model.dtype)} came from rounded logits then")
    if plan.settings.kind is NeedleKind.R:
        raise _refused(path, "scores of kind r are too coarse to tell if they are this model's")
    right = [outcome for outcome in known.outcomes.values() if outcome.scores is not None]
    if not right:
        raise _refused(path, "none of its runs was right, so nothing tells if they are this model's")
    shortest = min(right, key=lambda outcome: (outcome.prompt_tokens, outcome.cell))
    place = next(place for place in plan.places if shortest.cell in place.cells)
    if not _alike(shortest, make_run(model, plan, plan.job(place), chunk_size)):
        raise _refused(path, "a run that was made again has another result, so its runs are of other weights")


def _alike(one: Outcome, other: Outcome) -> bool:
    if one.scores is None or other.scores is None or one.text != other.text:
        return False
    return torch.allclose(one.scores, other.scores, rtol=_RELATIVE, atol=_ABSOLUTE)


def _refused(path: object, why: str) -> JournalError:
    return JournalError(
        f"{path} was written by an earlier version, which did not record the model's weights, and {why}: give another "
        "--out or --journal to start over, or delete it."
    )
