"""SnapKV against a slow float64 computation from its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.definitions import MODELS, SHAPES, assert_scores, attention, pooled, reduced
from support.views import random_view, score
from winnow.errors import MethodError
from winnow.score import SnapKV
from winnow.view import LayerView


def snapkv_by_definition(scorer: SnapKV, view: LayerView) -> np.ndarray:
    weights = attention(view)
    heads, length, _ = view.keys.shape
    group, prefix = weights.shape[0] // heads, max(0, length - scorer.window)
    result = np.full((heads, length), np.inf)
    for head in range(heads):
        votes = [
            weights[head * group + member, prefix:, :prefix].mean(axis=0) if prefix else np.zeros(0)
            for member in range(group)
        ]
        if scorer.pool_first:
            votes = [pooled(vote, scorer.kernel, scorer.pool) for vote in votes]
            result[head, :prefix] = reduced(votes, scorer.reduce)
        else:
            result[head, :prefix] = pooled(reduced(votes, scorer.reduce), scorer.kernel, scorer.pool)
    return result


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "scorer",
    [
        SnapKV(),
        SnapKV(window=1, kernel=1),
        SnapKV(window=3, kernel=5, pool="avg"),
        SnapKV(window=4, kernel=3, reduce="max", pool_first=True),
        SnapKV(window=16, kernel=9, pool="avg", reduce="sum", pool_first=True),
    ],
    ids=str,
)
def test_snapkv(scorer: SnapKV, shape: tuple[int, ...], model: dict[str, float]) -> None:
    view = random_view(*shape, **model)
    assert_scores(score(scorer, view), snapkv_by_definition(scorer, view))


def test_gradients_are_not_needed() -> None:
    view = random_view()
    view.keys.requires_grad_()
    with torch.no_grad():
        assert not score(SnapKV(), view).requires_grad


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: SnapKV(window=0),
        lambda: SnapKV(window=2.5),  # type: ignore[arg-type]
        lambda: SnapKV(kernel=4),
        lambda: SnapKV(pool="median"),  # type: ignore[arg-type]
        lambda: SnapKV(reduce="min"),  # type: ignore[arg-type]
        lambda: SnapKV(pool_first=1),  # type: ignore[arg-type]
    ],
)
def test_wrong_parameters_are_refused(wrong: object) -> None:
    with pytest.raises(MethodError, match="must be"):
        wrong()  # type: ignore[operator]
