"""SnapKV against a slow float64 computation from its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.definitions import MODELS, SHAPES, assert_scores, attention, pooled, reduced
from support.views import random_view, score, shown_to
from winnow.errors import MethodError
from winnow.score import SnapKV
from winnow.score import window as window_module
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
        if scorer.pool_first == "queries":
            votes = [pooled_queries(scorer, weights[head * group + member], prefix) for member in range(group)]
            result[head, :prefix] = reduced(votes, scorer.reduce)
        elif scorer.pool_first:
            votes = [pooled(vote, scorer.kernel, scorer.pool) for vote in votes]
            result[head, :prefix] = reduced(votes, scorer.reduce)
        else:
            result[head, :prefix] = pooled(reduced(votes, scorer.reduce), scorer.kernel, scorer.pool)
    return result


def pooled_queries(scorer: SnapKV, weights: np.ndarray, prefix: int) -> np.ndarray:
    """CoKV, Algorithm 2, line 3: max pooling of every query's attention, then the mean over the window."""
    if not prefix:
        return np.zeros(0)
    rows = [pooled(row[:prefix], scorer.kernel, scorer.pool) for row in weights[prefix:]]
    return np.mean(rows, axis=0)


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
        SnapKV(window=4, kernel=3, pool_first="queries"),
        SnapKV(window=5, kernel=7, reduce="max", pool="avg", pool_first="queries"),
    ],
    ids=str,
)
def test_snapkv(scorer: SnapKV, shape: tuple[int, ...], model: dict[str, float]) -> None:
    view = random_view(*shape, **model)
    assert_scores(score(scorer, view), snapkv_by_definition(scorer, view))


@pytest.mark.parametrize("over", ["visible", "prefix"])
def test_pooled_queries_do_not_depend_on_blocks(over: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = SnapKV(window=20, pool_first="queries", over=over)  # type: ignore[arg-type]
    view = random_view(heads=2, group=2, length=70)
    whole = score(scorer, view)
    monkeypatch.setattr(window_module, "_MOST_ROWS", 6)
    torch.testing.assert_close(score(scorer, view), whole, rtol=1e-5, atol=1e-7)


def test_one_query_over_the_prefix_is_pooled_either_way() -> None:
    view = random_view(heads=2, group=3, length=40)
    each, head = (SnapKV(window=1, over="prefix", pool_first=first) for first in ("queries", True))
    torch.testing.assert_close(score(each, view), score(head, view))


@settings(max_examples=40, deadline=None)
@given(st.integers(9, 50), st.integers(0, 2**31), st.sampled_from(["max", "avg"]))
def test_pooled_queries_pass_over_absent_columns(length: int, seed: int, pool: str) -> None:
    """Columns that a head has no token in leave the others as they are without them."""
    scorer = SnapKV(window=4, kernel=3, pool=pool, pool_first="queries")  # type: ignore[arg-type]
    view = shown_to(scorer, random_view(heads=1, group=2, length=length, seed=seed))
    absent = torch.rand(1, length, generator=torch.Generator().manual_seed(seed)) < 0.4
    absent[:, -scorer.window - 1 :] = False
    there = ~absent[0]
    alone = view._replace(keys=view.keys[:, there], values=view.values[:, there])
    found = scorer(view._replace(absent=absent))
    torch.testing.assert_close(found[:, there], scorer(alone), rtol=1e-5, atol=1e-7)


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
        lambda: SnapKV(pool_first="rows"),  # type: ignore[arg-type]
    ],
)
def test_wrong_parameters_are_refused(wrong: object) -> None:
    with pytest.raises(MethodError, match="must be"):
        wrong()  # type: ignore[operator]


def test_defensive_votes_are_pooled_in_one_way() -> None:
    with pytest.raises(MethodError, match="leave pool_first out"):
        SnapKV(aggregate="defensive", pool_first=True)
