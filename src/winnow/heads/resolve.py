"""Head scores as methods ask for them: given or shipped, of the right kind, and of the model's shape."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import Tensor

from winnow.bundled import NAME, is_bundled
from winnow.errors import MethodError
from winnow.heads.readers import read_scores
from winnow.heads.scores import HeadScores
from winnow.heads.shipped import shipped_scores


def given_scores(scores: object, owner: str) -> HeadScores | None:
    """Head scores from what a user gave: a file, a table or None. owner: what takes them, for errors.

    Raises HeadScoresError for a file that cannot be read, MethodError for anything else.
    """
    if isinstance(scores, str | Path):
        return read_scores(scores)
    if scores is not None and not isinstance(scores, HeadScores):
        raise MethodError(f"{owner}: scores must be a file of head scores or a winnow.HeadScores, not {scores!r}.")
    return scores


def scores_of_model(
    given: HeadScores | None, kind: str, model: str, heads: tuple[int, ...], lacking: str
) -> HeadScores:
    """The given scores, or those of a kind that are shipped with a model, per KV head of every compressed layer.

    kind: the `HeadScores.method` of shipped ones; empty where there is none to take. model: a directory or hub name.
    lacking: the error text where there are no scores. Warns where a table names another model. Raises MethodError
    without scores, and for a table of another shape.
    """
    found = given or (shipped_scores(model, kind) if kind else None)
    if found is None:
        raise MethodError(lacking)
    check_shape(found, heads)
    if found.model and model and not same_model(found.model, model):
        warnings.warn(f"The head scores are for {found.model}, but the model is {model}.", stacklevel=5)
    return found


def check_shape(table: HeadScores, heads: tuple[int, ...]) -> None:
    """Raise MethodError unless a table has a score for each of the `heads` KV heads of every compressed layer."""
    layers, per_layer = table.shape
    if heads == (per_layer,) * layers and table.heads == "kv":
        return
    model = f"{len(heads)} compressed layers with {' or '.join(map(str, sorted(set(heads))))} KV heads"
    given = f"{layers} layers with {per_layer} {'KV' if table.heads == 'kv' else 'query'} heads"
    groups = len(set(heads)) == 1 and layers == len(heads) and per_layer % heads[0] == 0
    fits = table.heads == "query" and groups
    remedy = f"average its groups with scores.grouped({heads[0]})" if fits else "give scores of this model"
    raise MethodError(f"{table} has {given}, but the model has {model}; {remedy}.")


def highest(scores: Tensor, count: int) -> Tensor:
    """[L, H] bool: the `count` heads of the highest scores; equal scores go to the lower layer and head."""
    chosen = scores.new_zeros(scores.numel(), dtype=torch.bool)
    chosen[torch.argsort(scores.flatten(), descending=True, stable=True)[:count]] = True
    return chosen.view(scores.shape)


def same_model(first: str, second: str) -> bool:
    """True if two names (directories, files, hub names) seem to be of one model."""
    return _base_name(first) == _base_name(second)


def _base_name(model: str) -> str:
    """A model's name without folders, owner or a file's suffix, in lower case."""
    if is_bundled(model):
        return NAME
    return model.replace("\\", "/").rstrip("/").rpartition("/")[2].lower().removesuffix(".gguf")
