"""Random scores depend on the seed and the layer."""

from __future__ import annotations

import pytest
import torch

from support.views import random_view, score
from winnow.errors import MethodError
from winnow.score import Random


def test_random_depends_on_seed_and_layer_only() -> None:
    view = random_view(layer=1)
    again = random_view(layer=1, seed=9)
    assert torch.equal(score(Random(3), view), score(Random(3), again))
    assert not torch.equal(score(Random(3), view), score(Random(4), view))
    assert not torch.equal(score(Random(3), view), score(Random(3), random_view(layer=2)))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Random(seed=True),
    ],
)
def test_wrong_parameters_are_refused(wrong: object) -> None:
    with pytest.raises(MethodError, match="must be"):
        wrong()  # type: ignore[operator]
