"""DefensiveKV's aggregation against its definition in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import winnow
from support.definitions import MODELS, SHAPES, assert_scores, attention, pooled, reduced
from support.views import random_view, score
from winnow.allocate import Ada
from winnow.score import Critical, SnapKV
from winnow.score import window as window_module
from winnow.view import LayerView


def by_definition(scorer: SnapKV, view: LayerView) -> np.ndarray:
    heads, length, _ = view.keys.shape
    before = max(0, length - scorer.window)
    result = np.full((heads, length), np.inf)
    if not before:
        return result
    if scorer.over == "prefix":
        cut = view._replace(keys=view.keys.clone())
        weights = np.stack([_over_prefix(cut, head, before) for head in range(view.queries.shape[0])])
    else:
        weights = attention(view)[:, before:, :before]
    group = len(weights) // heads
    for head in range(heads):
        members = []
        for member in weights[head * group : (head + 1) * group]:
            rows = [pooled(row, scorer.kernel, scorer.pool) * 1.0 for row in member]
            rows = [spread * row.sum() / spread.sum() for spread, row in zip(rows, member, strict=True)]
            members.append(np.max(rows, axis=0))
        worst = reduced(members, scorer.reduce)
        result[head, :before] = np.maximum(worst, worst.mean())
    return result


def _over_prefix(view: LayerView, head: int, before: int) -> np.ndarray:
    keys = view.keys[head // (view.queries.shape[0] // view.keys.shape[0]), :before].double().numpy()
    logits = view.queries[head, before:].double().numpy() @ keys.T * view.scaling
    if view.softcap is not None:
        logits = view.softcap * np.tanh(logits / view.softcap)
    extra = 0.0 if view.sinks is None else np.exp(float(view.sinks[head]))
    return np.exp(logits) / (np.exp(logits).sum(axis=1, keepdims=True) + extra)


SCORERS = [
    SnapKV(aggregate="defensive"),
    SnapKV(window=3, kernel=5, pool="avg", reduce="max", aggregate="defensive"),
    SnapKV(window=4, kernel=1, over="prefix", aggregate="defensive"),
]


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("scorer", SCORERS, ids=str)
def test_definition(scorer: SnapKV, shape: tuple[int, ...], model: dict[str, float]) -> None:
    view = random_view(*shape, **model)
    assert_scores(score(scorer, view), by_definition(scorer, view))


def test_one_query_that_asks_is_enough() -> None:
    """Half as many votes as two queries of the mean's favorite, and yet the highest peak."""
    view = random_view(1, 1, 20, sharpness=0.0)
    view.queries[0, -1] = 30 * view.keys[0, 5]
    defensive = score(SnapKV(window=4, kernel=1, aggregate="defensive"), view)[0, :16]
    assert int(defensive.argmax()) == 5
    assert bool((defensive >= defensive.mean() / 2).all())
    assert len(defensive.unique()) < 16  # those below the mean share it


def test_blocks_of_queries_do_not_change_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = SnapKV(window=30, aggregate="defensive")
    view = random_view(heads=2, group=3, length=61)
    whole = score(scorer, view)
    monkeypatch.setattr(window_module, "_MOST_ROWS", 7)
    torch.testing.assert_close(score(scorer, view), whole, rtol=1e-5, atol=1e-8)


@settings(max_examples=30, deadline=None)
@given(st.integers(9, 30), st.lists(st.integers(0, 4), min_size=2, max_size=2), st.integers(0, 2**31))
def test_absent_columns_change_nothing(length: int, gaps: list[int], seed: int) -> None:
    scorer = SnapKV(window=3, kernel=5, pool="avg", reduce="max", aggregate="defensive")
    view = random_view(2, 2, length, seed=seed)
    absent = torch.zeros(2, length, dtype=torch.bool)
    for head, gap in enumerate(gaps):
        absent[head, 1 : 1 + gap] = True
    shown = view._replace(keys=view.keys.masked_fill(absent[..., None], 0), absent=absent)
    scores = score(scorer, shown)
    for head in range(2):
        held = ~absent[head]
        queries = view.queries[2 * head : 2 * head + 2, held]
        alone = view._replace(keys=view.keys[head : head + 1, held], queries=queries)
        assert_scores(scores[head : head + 1, held], by_definition(scorer, alone))


def test_the_preset_is_what_its_authors_run() -> None:
    method = winnow.method("defensivekv(window=32, kernel=5, pool=avg)", 64)
    assert method.allocator == Ada(floor=0.0)
    assert isinstance(method.scorer, Critical)
    assert method.scorer.base == SnapKV(window=32, kernel=5, pool="avg", reduce="max", aggregate="defensive")
