"""Every scorer against a slow float64 computation from its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.definitions import MODELS, SHAPES, assert_scores, attention, pooled, reduced
from support.views import random_view, refined, score
from winnow.errors import MethodError
from winnow.score import (
    H2O,
    TOVA,
    Critical,
    ExpectedAttention,
    Full,
    KeyDiff,
    Knorm,
    Random,
    Scorer,
    SnapKV,
    StreamingLLM,
    window,
)
from winnow.view import LayerView

ALL = [Full(), Random(), StreamingLLM(), SnapKV(), H2O(), TOVA(), Knorm(), KeyDiff(), ExpectedAttention()]
ALL += [Critical(base=SnapKV())]


def snapkv_by_definition(scorer: SnapKV, view: LayerView) -> np.ndarray:
    weights = attention(view)
    heads, length, _ = view.keys.shape
    group, prefix = weights.shape[0] // heads, max(0, length - scorer.window)
    result = np.full((heads, length), np.inf)
    for head in range(heads):
        votes = [
            weights[head * group + member, prefix:, :prefix].mean(axis=0) if prefix else np.zeros(0)
            for member in range(group)
        ]
        if scorer.pool_first:
            votes = [pooled(vote, scorer.kernel, scorer.pool) for vote in votes]
            result[head, :prefix] = reduced(votes, scorer.reduce)
        else:
            result[head, :prefix] = pooled(reduced(votes, scorer.reduce), scorer.kernel, scorer.pool)
    return result


def h2o_by_definition(scorer: H2O, view: LayerView) -> np.ndarray:
    received = attention(view).sum(axis=1)
    heads, length, _ = view.keys.shape
    scores = received.reshape(heads, -1, length).mean(axis=1)
    return scores / np.arange(length, 0, -1) if scorer.normalise else scores


def keydiff_by_definition(view: LayerView) -> np.ndarray:
    keys = view.keys.double().numpy()
    result = np.zeros(keys.shape[:2])
    for head, rows in enumerate(keys):
        anchor = np.mean([row / np.linalg.norm(row) for row in rows], axis=0)
        for token, row in enumerate(rows):
            result[head, token] = -(row @ anchor) / np.linalg.norm(row) / np.linalg.norm(anchor)
    return result


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "scorer",
    [
        SnapKV(),
        SnapKV(window=1, kernel=1),
        SnapKV(window=3, kernel=5, pool="avg"),
        SnapKV(window=4, kernel=3, reduce="max", pool_first=True),
        SnapKV(window=16, kernel=9, pool="avg", reduce="sum", pool_first=True),
    ],
    ids=str,
)
def test_snapkv(scorer: SnapKV, shape: tuple[int, ...], model: dict[str, float]) -> None:
    view = random_view(*shape, **model)
    assert_scores(score(scorer, view), snapkv_by_definition(scorer, view))


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("normalise", [False, True])
def test_h2o(normalise: bool, shape: tuple[int, ...], model: dict[str, float]) -> None:
    view, scorer = random_view(*shape, **model), H2O(normalise=normalise)
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


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_tova_is_one_set_for_all_heads(shape: tuple[int, ...], model: dict[str, float]) -> None:
    view = random_view(*shape, **model)
    expected = attention(view)[:, -1].mean(axis=0)
    assert_scores(score(TOVA(), view), np.tile(expected, (shape[0], 1)))
    expected[-1] = np.inf
    assert_scores(score(TOVA(keep_last=True), view), np.tile(expected, (shape[0], 1)))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_knorm(shape: tuple[int, ...]) -> None:
    view = random_view(*shape)
    assert_scores(score(Knorm(), view), -np.linalg.norm(view.keys.double().numpy(), axis=-1))


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


@pytest.mark.parametrize("length", [1, 3, 4, 9])
def test_streamingllm_orders_by_recency_behind_the_sinks(length: int) -> None:
    scores = score(StreamingLLM(sinks=4), random_view(heads=2, length=length))
    assert scores[:, :4].isinf().all()
    assert (scores[:, 4:] == torch.arange(4, length)).all() if length > 4 else True


def test_random_depends_on_seed_and_layer_only() -> None:
    view = random_view(layer=1)
    again = random_view(layer=1, seed=9)
    assert torch.equal(score(Random(3), view), score(Random(3), again))
    assert not torch.equal(score(Random(3), view), score(Random(4), view))
    assert not torch.equal(score(Random(3), view), score(Random(3), random_view(layer=2)))


def test_full_prefers_nothing() -> None:
    assert (score(Full(), random_view()) == 0).all()


@pytest.mark.parametrize("scorer", ALL, ids=str)
@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 30])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_contract(scorer: Scorer, length: int, dtype: torch.dtype) -> None:
    view = random_view(heads=2, group=3, length=length, dtype=dtype)
    scores = score(scorer, view)
    assert scores.shape == (2, length)
    assert scores.dtype == torch.float32
    assert not scores.isnan().any()
    # +inf marks exactly what is guaranteed, and the window is part of it
    assert (scores.isinf().sum(dim=1) == min(scorer.guaranteed, length)).all()
    assert scores[:, length - min(scorer.window, length) :].isinf().all()
    assert torch.equal(scores, score(scorer, view))


@pytest.mark.parametrize("scorer", [SnapKV(), H2O(), TOVA(), KeyDiff()], ids=str)
def test_low_precision_is_scored_in_fp32(scorer: Scorer) -> None:
    view = random_view(heads=2, group=2, length=60, dtype=torch.bfloat16)
    exact = view._replace(queries=view.queries.float(), keys=view.keys.float())
    torch.testing.assert_close(score(scorer, view), score(scorer, exact), rtol=1e-5, atol=1e-7)


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


def test_gradients_are_not_needed() -> None:
    view = random_view()
    view.keys.requires_grad_()
    with torch.no_grad():
        assert not score(SnapKV(), view).requires_grad


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: SnapKV(window=0),
        lambda: SnapKV(window=2.5),  # type: ignore[arg-type]
        lambda: SnapKV(kernel=4),
        lambda: SnapKV(pool="median"),  # type: ignore[arg-type]
        lambda: SnapKV(reduce="min"),  # type: ignore[arg-type]
        lambda: SnapKV(pool_first=1),  # type: ignore[arg-type]
        lambda: StreamingLLM(sinks=-1),
        lambda: Random(seed=True),
        lambda: H2O(recent=1.5),
        lambda: H2O(recent=float("nan")),
    ],
)
def test_wrong_parameters_are_refused(wrong: object) -> None:
    with pytest.raises(MethodError, match="must be"):
        wrong()  # type: ignore[operator]
