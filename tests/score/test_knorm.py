"""Knorm against its definition in float64."""

from __future__ import annotations

import numpy as np
import pytest

from support.definitions import SHAPES, assert_scores
from support.views import random_view, score
from winnow.score import Knorm


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_knorm(shape: tuple[int, ...]) -> None:
    view = random_view(*shape)
    assert_scores(score(Knorm(), view), -np.linalg.norm(view.keys.double().numpy(), axis=-1))
