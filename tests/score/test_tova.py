"""TOVA against its definition in float64."""

from __future__ import annotations

import numpy as np
import pytest

from support.definitions import MODELS, SHAPES, assert_scores, attention
from support.views import random_view, score
from winnow.score import TOVA


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_tova_is_one_set_for_all_heads(shape: tuple[int, ...], model: dict[str, float]) -> None:
    view = random_view(*shape, **model)
    expected = attention(view)[:, -1].mean(axis=0)
    assert_scores(score(TOVA(), view), np.tile(expected, (shape[0], 1)))
    expected[-1] = np.inf
    assert_scores(score(TOVA(keep_last=True), view), np.tile(expected, (shape[0], 1)))
