"""R-KV against its definition in float64, with loops over heads, queries and pairs of keys."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.definitions import SHAPES, assert_scores, pooled
from support.views import random_view, score
from winnow.errors import MethodError
from winnow.score import RKV, rkv
from winnow.view import LayerView


def importance_by_definition(scorer: RKV, view: LayerView) -> np.ndarray:
    queries, keys = view.queries.double().numpy(), view.keys.double().numpy()
    heads, length, _ = keys.shape
    group, before = len(queries) // heads, length - scorer.window
    result = np.zeros((heads, before))
    for head in range(heads):
        rows = []
        for row in range(queries.shape[1] - scorer.window, queries.shape[1]):
            logits = np.max(
                [keys[head, :before] @ queries[head * group + g, row] * view.scaling for g in range(group)], axis=0
            )
            if view.softcap is not None:
                logits = view.softcap * np.tanh(logits / view.softcap)
            weights = np.exp(logits - logits.max())
            rows.append(weights / weights.sum())
        result[head] = pooled(np.mean(rows, axis=0), scorer.kernel, scorer.pool)
    return result


def redundancy_by_definition(scorer: RKV, keys: np.ndarray) -> np.ndarray:
    """[N] of the keys [N, D] of one head."""
    length = len(keys)
    cosine = np.zeros((length, length))
    for one in range(length):
        for other in range(length):
            size = np.linalg.norm(keys[one]) * np.linalg.norm(keys[other])
            if one != other and size > 0:
                cosine[one, other] = keys[one] @ keys[other] / size
        alike = [other for other in range(length) if cosine[one, other] > scorer.threshold]
        if alike:
            cosine[one, alike[-1]] = 0
    means = [np.sum(cosine[:, token]) / length for token in range(length)]
    return np.exp(means) / np.sum(np.exp(means))


def by_definition(scorer: RKV, view: LayerView) -> np.ndarray:
    heads, length, _ = view.keys.shape
    result = np.full((heads, length), np.inf)
    before = length - scorer.window
    if before > 0:
        important = importance_by_definition(scorer, view)
        redundant = np.stack([redundancy_by_definition(scorer, keys) for keys in view.keys.double().numpy()])
        result[:, :before] = scorer.balance * important - (1 - scorer.balance) * redundant[:, :before]
    return result


SCORERS = [RKV(), RKV(window=2, kernel=1), RKV(window=3, balance=0.6, threshold=0.2, pool="avg"), RKV(balance=0.0)]


@pytest.mark.parametrize("model", [{}, {"softcap": 1.5}], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("scorer", SCORERS, ids=str)
def test_definition(scorer: RKV, shape: tuple[int, ...], model: dict[str, float]) -> None:
    view = random_view(*shape, **model)
    assert_scores(score(scorer, view), by_definition(scorer, view))


def test_of_tokens_that_say_the_same_the_last_one_stays() -> None:
    """Three keys alike among others at right angles: the first two are the most redundant tokens."""
    keys = torch.eye(8)[None, [0, 1, 2, 1, 3, 1, 4, 5]]
    view = random_view(1, 1, 8)._replace(keys=keys)
    scores = score(RKV(window=1, balance=0.0), view)[0]
    assert sorted(range(7), key=lambda token: (float(scores[token]), token))[:2] == [1, 3]


def test_zero_keys_are_alike_to_nothing() -> None:
    view = random_view(length=20)
    view.keys[:, 3] = 0
    assert_scores(score(RKV(window=2), view), by_definition(RKV(window=2), view))


@pytest.mark.parametrize("rows", [1, 7, 30])
def test_blocks_do_not_change_scores(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    view = random_view(heads=2, group=3, length=61, dim=4)
    whole = score(RKV(), view)
    monkeypatch.setattr(rkv, "_BLOCK", rows * 2 * 61)
    monkeypatch.setattr(rkv, "_FEWEST_ROWS", 1)
    torch.testing.assert_close(score(RKV(), view), whole, rtol=1e-5, atol=1e-8)


@settings(max_examples=40, deadline=None)
@given(st.integers(9, 40), st.integers(1, 3), st.integers(0, 2**31), st.data())
def test_absent_columns_change_nothing(length: int, heads: int, seed: int, data: st.DataObject) -> None:
    """Every head scores what it holds as if there were nothing else, wherever its absent columns lie."""
    scorer = RKV(window=3, kernel=5)
    gaps = data.draw(st.lists(st.integers(0, length - 5), min_size=heads, max_size=heads))
    view = random_view(heads, 2, length, seed=seed)
    absent = torch.zeros(heads, length, dtype=torch.bool)
    for head, gap in enumerate(gaps):
        absent[head, 1 : 1 + gap] = True
    shown = view._replace(keys=view.keys.masked_fill(absent[..., None], 0), absent=absent)
    scores = score(scorer, shown)
    for head in range(heads):
        held = ~absent[head]
        alone = view._replace(keys=view.keys[head : head + 1, held], queries=view.queries[2 * head : 2 * head + 2])
        assert_scores(scores[head : head + 1, held], by_definition(scorer, alone))
    assert not scores.isnan().any()


@pytest.mark.parametrize("wrong", [{"window": 0}, {"balance": 1.5}, {"threshold": -1}, {"kernel": 4}, {"pool": "sum"}])
def test_bad_parameters(wrong: dict[str, float]) -> None:
    with pytest.raises(MethodError, match=next(iter(wrong))):
        RKV(**wrong)
