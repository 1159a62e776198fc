"""Random scores depend on the seed and the layer."""

from __future__ import annotations

import pytest
import torch

from support.views import random_view, score
from winnow.errors import MethodError
from winnow.score import Random
from winnow.score.random_scorer import _TOKEN_STRIDE


def test_random_depends_on_seed_and_layer_only() -> None:
    view = random_view(layer=1)
    again = random_view(layer=1, seed=9)
    assert torch.equal(score(Random(3), view), score(Random(3), again))
    assert not torch.equal(score(Random(3), view), score(Random(4), view))
    assert not torch.equal(score(Random(3), view), score(Random(3), random_view(layer=2)))


def test_every_fold_draws_anew() -> None:
    """The same columns would win at every fold otherwise, and old tokens would all be of those."""
    view = random_view(length=20)
    held = torch.arange(20).expand(2, -1)
    early, late = (view._replace(positions=held + seen) for seen in (0, 16))
    assert torch.equal(score(Random(3), early), score(Random(3), early))
    assert not torch.equal(score(Random(3), early), score(Random(3), late))
    assert not torch.equal(score(Random(3), late), score(Random(3), view._replace(layer=1, positions=held)))


def test_folds_are_of_other_seeds_than_layers_and_each_other() -> None:
    """torch's generator takes 32 bits of a seed."""
    seeds = {(layer + tokens * _TOKEN_STRIDE) % 2**32 for layer in range(128) for tokens in range(16, 100_000, 97)}
    assert len(seeds) == 128 * len(range(16, 100_000, 97))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Random(seed=True),
    ],
)
def test_wrong_parameters_are_refused(wrong: object) -> None:
    with pytest.raises(MethodError, match="must be"):
        wrong()  # type: ignore[operator]
