"""ApertureKV's query diversification (Eq. 8-12), in float64 by the letter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.definitions import MODELS, SHAPES, assert_scores, pooled
from support.views import random_view, score
from winnow.errors import MethodError
from winnow.score import SnapKV
from winnow.score import window as window_module
from winnow.score.diversity import diversified
from winnow.view import LayerView


def diversified_by_definition(queries: np.ndarray, strength: float) -> np.ndarray:
    """[w, D] of one head -> [w, D]."""
    centroid = queries.mean(axis=0)
    unit = centroid / np.linalg.norm(centroid)
    return np.stack([q + strength * (q - (q @ unit) * unit) for q in queries])


def scores_by_definition(scorer: SnapKV, view: LayerView) -> np.ndarray:
    """Diversified window attention to the prefix keys alone, group mean, pooled; the window +inf."""
    queries, keys = view.queries.double().numpy(), view.keys.double().numpy()
    heads, length, _ = keys.shape
    group, outside = len(queries) // heads, length - scorer.window
    result = np.full((heads, length), np.inf)
    if outside <= 0:
        return result
    for head in range(heads):
        votes = []
        for member in range(head * group, (head + 1) * group):
            window = diversified_by_definition(queries[member, -scorer.window :], scorer.diversify)
            logits = window @ keys[head, :outside].T * view.scaling
            if view.softcap is not None:
                logits = view.softcap * np.tanh(logits / view.softcap)
            weights = np.exp(logits)
            extra = np.exp(float(view.sinks[member])) if view.sinks is not None else 0.0
            votes.append((weights / (weights.sum(axis=1, keepdims=True) + extra)).mean(axis=0))
        result[head, :outside] = pooled(np.mean(votes, axis=0), scorer.kernel, scorer.pool)
    return result


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("scorer", [SnapKV(diversify=0.45), SnapKV(window=3, kernel=1, diversify=0.2)], ids=str)
def test_diversified_scores(scorer: SnapKV, shape: tuple[int, ...], model: dict[str, float]) -> None:
    scorer = SnapKV(scorer.window, scorer.kernel, diversify=scorer.diversify, over="prefix")
    view = random_view(*shape, **model)
    assert_scores(score(scorer, view), scores_by_definition(scorer, view))


def test_prefix_attention_does_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    view = random_view(heads=2, group=2, length=70, dtype=torch.bfloat16)
    scorer = SnapKV(window=20, diversify=0.3, over="prefix")
    whole = score(scorer, view)
    monkeypatch.setattr(window_module, "_MOST_ROWS", 6)
    torch.testing.assert_close(score(scorer, view), whole, rtol=1e-5, atol=1e-7)


def test_no_diversification_leaves_queries_alone() -> None:
    view = random_view(heads=2, group=2, length=40)
    assert torch.equal(score(SnapKV(diversify=0.0), view), score(SnapKV(), view))
    assert not torch.equal(score(SnapKV(diversify=0.45), view), score(SnapKV(), view))


def test_diversification_lowers_the_cosine_between_queries() -> None:
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(3, 8, 16, generator=generator) + 2 * torch.randn(3, 1, 16, generator=generator)

    def cosine(vectors: torch.Tensor) -> float:
        unit = torch.nn.functional.normalize(vectors, dim=-1)
        pairs = unit @ unit.transpose(1, 2)
        return float((pairs.sum() - pairs.diagonal(dim1=1, dim2=2).sum()) / (3 * 8 * 7))

    cosines = [cosine(diversified(queries, strength)) for strength in (0, 0.2, 0.45)]
    assert cosines[0] > cosines[1] > cosines[2]


def test_queries_without_a_common_direction() -> None:
    queries = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]])
    assert diversified(queries, 0.5).tolist() == [[[1.5, 0.0], [-1.5, 0.0]]]
    assert not diversified(torch.zeros(1, 3, 4), 0.5).isnan().any()
    # a window of one query is its own mean: nothing to strengthen
    single = torch.tensor([[[3.0, 4.0]]])
    torch.testing.assert_close(diversified(single, 0.5), single)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: SnapKV(diversify=-0.1),
        lambda: SnapKV(over="window"),  # type: ignore[arg-type]
    ],
)
def test_wrong_parameters_are_refused(wrong: object) -> None:
    with pytest.raises(MethodError, match="must be"):
        wrong()  # type: ignore[operator]
