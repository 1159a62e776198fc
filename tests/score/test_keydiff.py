"""KeyDiff against its definition in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.definitions import SHAPES, assert_scores
from support.views import random_view, score
from winnow.score import KeyDiff, Knorm
from winnow.view import LayerView


def keydiff_by_definition(view: LayerView) -> np.ndarray:
    keys = view.keys.double().numpy()
    result = np.zeros(keys.shape[:2])
    for head, rows in enumerate(keys):
        anchor = np.mean([row / np.linalg.norm(row) for row in rows], axis=0)
        for token, row in enumerate(rows):
            result[head, token] = -(row @ anchor) / np.linalg.norm(row) / np.linalg.norm(anchor)
    return result


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_keydiff(shape: tuple[int, ...]) -> None:
    view = random_view(*shape)
    assert_scores(score(KeyDiff(), view), keydiff_by_definition(view))


def test_keydiff_of_zero_keys_is_a_number() -> None:
    view = random_view(length=5)
    view.keys[:, 2] = 0
    assert (score(KeyDiff(), view)[:, 2] == 0).all()
    assert (score(KeyDiff(), view._replace(keys=torch.zeros_like(view.keys))) == 0).all()


def test_keydiff_and_knorm_do_not_depend_on_chunks() -> None:
    view = random_view(heads=1, group=1, length=2500, dim=4)
    assert_scores(score(KeyDiff(), view), keydiff_by_definition(view))
    assert_scores(score(Knorm(), view), -np.linalg.norm(view.keys.double().numpy(), axis=-1))
