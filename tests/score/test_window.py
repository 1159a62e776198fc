"""Attention of the last queries: block by block, in memory linear in the prompt, pooled over neighbors."""

from __future__ import annotations

import pytest
import torch

from support.definitions import MODELS
from support.views import random_view, score
from winnow.score import H2O, SnapKV, window
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


def test_neighbors_are_pooled_across_absent_columns():
    scores = torch.tensor([[3.0, 1.0, 0.0, 0.0, 5.0, 2.0]])
    absent = torch.tensor([[False, False, True, True, False, False]])
    pooled = pool_tokens(scores, 3, "max", absent)
    assert pooled[~absent].tolist() == pool_tokens(scores[~absent][None], 3, "max")[0].tolist()
