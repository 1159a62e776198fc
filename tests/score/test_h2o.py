"""H2O against its definition in float64, and its share of recent tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.definitions import MODELS, SHAPES, assert_scores, attention
from support.views import one_layer, random_view, refined, score
from winnow.composition.names import method
from winnow.errors import MethodError
from winnow.score import H2O
from winnow.view import LayerView


def h2o_by_definition(scorer: H2O, view: LayerView) -> np.ndarray:
    received = attention(view).sum(axis=1)
    heads, length, _ = view.keys.shape
    scores = received.reshape(heads, -1, length).mean(axis=1)
    return scores / np.arange(length, 0, -1) if scorer.normalize else scores


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("normalize", [False, True])
def test_h2o(normalize: bool, shape: tuple[int, ...], model: dict[str, float]) -> None:
    view, scorer = random_view(*shape, **model), H2O(normalize=normalize)
    assert_scores(score(scorer, view), h2o_by_definition(scorer, view))


def test_h2o_keeps_its_share_of_recent_tokens_per_head() -> None:
    view = random_view(heads=3, length=10)
    scores = score(H2O(), view)
    kept = refined(H2O(), scores, [0, 5, 10], view).isinf()
    # half, rounded up: nothing, 3 and 5 tokens
    assert kept.sum(dim=1).tolist() == [0, 3, 5]
    assert kept[1, 7:].all()
    assert kept[2, 5:].all()
    assert not refined(H2O(recent=0), scores, [4, 4, 4], view).isinf().any()
    assert refined(H2O(recent=1), scores, [4, 4, 4], view)[:, 6:].isinf().all()


def test_recent_tokens_are_those_that_a_head_holds() -> None:
    absent = torch.zeros(2, 6, dtype=torch.bool)
    absent[1, 2:4] = True
    view = random_view(heads=2, length=6)._replace(absent=absent)
    kept = refined(H2O(recent=1), torch.zeros(2, 6), [4, 4], view).isinf() & ~absent
    assert [each.nonzero().flatten().tolist() for each in kept] == [[2, 3, 4, 5], [0, 1, 4, 5]]


def test_what_a_fold_normalizes_by_counts_from_where_tokens_stood() -> None:
    view = random_view(heads=1, group=1, length=4)
    folded = view._replace(positions=torch.tensor([[0, 2, 5, 6]]), carried=torch.zeros(1, 0))
    found = H2O(normalize=True).rank(folded).scores
    torch.testing.assert_close(found, H2O().rank(view).scores / torch.tensor([[7.0, 5, 2, 1]]))


def test_decimal_shares_are_exact() -> None:
    view = random_view(heads=1, group=1, length=120)
    scores = H2O()(view)
    assert refined(H2O(recent=0.07), scores, [100], view).isinf().sum() == 7


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: H2O(recent=1.5),
        lambda: H2O(recent=float("nan")),
    ],
)
def test_wrong_parameters_are_refused(wrong: object) -> None:
    with pytest.raises(MethodError, match="must be"):
        wrong()  # type: ignore[operator]


def test_h2o_keeps_half_recent_and_half_heavy() -> None:
    view = random_view(heads=1, group=1, length=50)
    positions, _ = method("h2o", 10).select(view, one_layer(1, 50, 10))
    assert positions.tolist()[5:] == [45, 46, 47, 48, 49]
    heavy = H2O()(view)[0, :45].topk(5).indices.sort().values
    assert positions.tolist()[:5] == heavy.tolist()
