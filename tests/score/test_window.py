"""Attention of the last queries: block by block, in memory linear in the prompt, pooled over neighbors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.definitions import MODELS
from support.largest_tensor import LargestTensor
from support.views import random_view, score
from winnow.score import H2O, RKV, SnapKV, window
from winnow.score.window import pool_tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_blocks_and_chunks_do_not_change_scores(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, model: dict[str, float]
) -> None:
    view = random_view(heads=2, group=2, length=37, dtype=dtype, **model)
    whole = [score(scorer, view) for scorer in (H2O(), SnapKV(window=11))]
    monkeypatch.setattr(window, "_MOST_ROWS", 5)
    monkeypatch.setattr(window, "_CHUNK", 6)
    blocks = list(window.attention_blocks(view, 11))
    assert [(block.first, tuple(block.attention.shape)) for block in blocks] == [
        (26, (2, 2, 5, 31)),
        (31, (2, 2, 5, 36)),
        (36, (2, 2, 1, 37)),
    ]
    for expected, scorer in zip(whole, (H2O(), SnapKV(window=11)), strict=True):
        torch.testing.assert_close(score(scorer, view), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("length", [1000, 4000])
def test_memory_is_linear_in_the_prompt(length: int) -> None:
    view = random_view(heads=1, group=1, length=length, dim=4)
    sizes = [block.attention.numel() for block in window.attention_blocks(view, length)]
    assert max(sizes) <= window._MOST_ROWS * length


EVERY_QUERY = [
    SnapKV(window=6, aggregate="defensive"),
    SnapKV(window=20, kernel=5, pool="avg", reduce="max", aggregate="defensive", over="prefix"),
    SnapKV(window=6, kernel=3, pool_first="queries"),
    SnapKV(window=20, pool="avg", pool_first="queries", over="prefix"),
]


@settings(max_examples=40, deadline=None)
@given(
    scorer=st.sampled_from([*EVERY_QUERY, SnapKV(window=6), RKV(window=20)]),
    heads=st.integers(1, 5),
    group=st.integers(1, 4),
    length=st.integers(1, 60),
    room=st.integers(1, 20_000),
    facts=st.sampled_from(MODELS),
    gaps=st.booleans(),
    seed=st.integers(0, 99),
)
@example(scorer=EVERY_QUERY[1], heads=1, group=1, length=21, room=1, facts={}, gaps=True, seed=3)
def test_parts_of_heads_do_not_change_scores(
    scorer: SnapKV | RKV, heads: int, group: int, length: int, room: int, facts: dict[str, float], gaps: bool, seed: int
) -> None:
    view = random_view(heads, group, length, seed=seed, **facts)
    if gaps and length > scorer.window:
        absent = torch.rand(heads, length, generator=torch.Generator().manual_seed(seed)) < 0.3
        absent[:, -scorer.window :] = False
        view = view._replace(absent=absent)
    whole = score(scorer, view)
    assert not whole.isnan().any()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window, "_BLOCK", room)
        torch.testing.assert_close(score(scorer, view), whole, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scorer", EVERY_QUERY, ids=str)
def test_matrices_of_what_every_query_pays_are_there_for_some_heads_at_a_time(
    scorer: SnapKV, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = random_view(heads=8, group=2, length=3000, dim=2, dtype=dtype)
    rows = min(scorer.window, window._FEWEST_ROWS)
    view = view._replace(queries=view.queries[:, -scorer.window :].clone())  # not a part of something larger
    of_a_head = 2 * rows * 3000
    for room in (of_a_head, 3 * of_a_head):
        monkeypatch.setattr(window, "_BLOCK", room)
        with LargestTensor() as seen:
            scorer(view)
        assert seen.elements <= max(room, 8 * 2 * 3000)  # or a number for every token and query head
    parts = list(window.heads_in_parts(view, scorer.window))
    assert [len(part.keys) for part in parts] == [3, 3, 2]
    assert [len(part.queries) for part in parts] == [6, 6, 4]


def test_neighbors_are_pooled_across_absent_columns():
    scores = torch.tensor([[3.0, 1.0, 0.0, 0.0, 5.0, 2.0]])
    absent = torch.tensor([[False, False, True, True, False, False]])
    pooled = pool_tokens(scores, 3, "max", absent)
    assert pooled[~absent].tolist() == pool_tokens(scores[~absent][None], 3, "max")[0].tolist()
