"""ExpectedAttention against its definition in float64, with the rotations written out as matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

import winnow
from support.definitions import MODELS, SHAPES, assert_scores
from support.families import build, prompt
from support.views import random_view, score
from winnow.cache.rotary import Embedding, Rotary, Unrotated
from winnow.errors import MethodError
from winnow.score import ExpectedAttention, expected, moments
from winnow.select import select
from winnow.view import LayerView

Matrix = Callable[[int], np.ndarray]


def turning(dim: int, scale: float = 1.3) -> Matrix:
    """R(p): neighbors turn at frequencies of their own, and everything is scaled."""

    def matrix(position: int) -> np.ndarray:
        result = np.zeros((dim, dim))
        for pair in range(dim // 2):
            angle = position * 0.7 ** (2 * pair)
            cos, sin = np.cos(angle), np.sin(angle)
            result[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = [[cos, -sin], [sin, cos]]
        return scale * result

    return matrix


@dataclass
class Written:
    """A rotation from its matrices."""

    matrix: Matrix

    def inverse(self, queries: Tensor, first: int) -> Tensor:
        rows = [np.linalg.solve(self.matrix(first + i), queries[:, i].double().T).T for i in range(queries.shape[1])]
        return torch.from_numpy(np.stack(rows, axis=1)).float()

    def mean(self, first: int, count: int) -> Tensor:
        return torch.from_numpy(np.mean([self.matrix(first + i) for i in range(count)], axis=0)).float()

    def pair_sizes(self, states: Tensor) -> Tensor:
        return states.unflatten(-1, (-1, 2)).norm(dim=-1)


def by_definition(scorer: ExpectedAttention, view: LayerView, matrix: Matrix) -> np.ndarray:
    queries, keys, values = (x.double().numpy() for x in (view.queries, view.keys, view.values))
    heads, length, _ = keys.shape
    group = len(queries) // heads
    result = np.full((heads, length), np.inf)
    if length <= scorer.sinks:
        return result
    ahead = np.mean([matrix(length + i) for i in range(scorer.future)], axis=0)
    for head in range(heads):
        shares = np.zeros(length - scorer.sinks)
        for query_head in range(head * group, (head + 1) * group):
            before = [np.linalg.solve(matrix(t), queries[query_head, t]) for t in range(scorer.sinks, length)]
            mean = ahead @ np.mean(before, axis=0)
            spread = ahead @ np.cov(np.array(before).T, bias=True).reshape(len(mean), -1) @ ahead.T
            logits = np.array([view.scaling * key @ mean for key in keys[head, scorer.sinks :]])
            if scorer.covariance:
                logits += [view.scaling**2 * key @ spread @ key / 2 for key in keys[head, scorer.sinks :]]
            weights = np.exp(logits - logits.max())
            shares += weights / weights.sum() / group
        if scorer.value_norm:
            shares = (shares + scorer.epsilon) * np.linalg.norm(values[head, scorer.sinks :], axis=-1)
        result[head, scorer.sinks :] = shares
    return result


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rotated", [False, True], ids=["unrotated", "rotated"])
@pytest.mark.parametrize(
    "scorer",
    [
        ExpectedAttention(),
        ExpectedAttention(covariance=False, epsilon=0.02),
        ExpectedAttention(value_norm=False, sinks=0, future=3),
        ExpectedAttention(sinks=6, future=1),
    ],
    ids=str,
)
def test_definition(scorer: ExpectedAttention, shape: tuple[int, ...], rotated: bool) -> None:
    view = random_view(*shape)
    if rotated:
        view = view._replace(rotation=Written(turning(shape[3])))
    matrix = turning(shape[3]) if rotated else lambda position: np.eye(shape[3])
    assert_scores(score(scorer, view), by_definition(scorer, view, matrix))


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_soft_capping_and_sinks_of_the_model_do_not_enter(model: dict[str, float]) -> None:
    assert torch.equal(score(ExpectedAttention(), random_view(**model)), score(ExpectedAttention(), random_view()))


@pytest.mark.parametrize("length", [1, 3, 4, 5, 6])
def test_short_prompts(length: int) -> None:
    scores = score(ExpectedAttention(), random_view(heads=2, length=length))
    assert scores[:, :4].isinf().all()
    assert scores[:, 4:].isfinite().all()
    assert ExpectedAttention().queries_needed(length) == max(0, length - 4)


def test_more_queries_than_needed_change_nothing() -> None:
    view = random_view(length=30)
    assert torch.equal(ExpectedAttention()(view), score(ExpectedAttention(), view))


def test_logits_are_the_logarithm_of_the_expected_exponential() -> None:
    """E[exp(c·q·k)] over queries drawn from N(μ, Σ), which is what the closed form stands for."""
    view = random_view(heads=1, group=1, length=60, dim=4, sharpness=1.0)
    queries = view.queries[0, 4:].double()
    drawn = torch.distributions.MultivariateNormal(queries.mean(0), queries.T.cov(correction=0))
    torch.manual_seed(0)
    attended = torch.exp(drawn.sample((100_000,)) @ view.keys[0, 4:].double().T * view.scaling).mean(0)
    shares = score(ExpectedAttention(value_norm=False), view)[0, 4:].double()
    torch.testing.assert_close(shares, attended / attended.sum(), rtol=0.03, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_do_not_change_scores(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    view = random_view(heads=2, group=3, length=53, dtype=dtype)
    view = view._replace(queries=view.queries + 30)  # far from zero and close together
    whole = score(ExpectedAttention(), view)
    monkeypatch.setattr(expected, "_BLOCK", 7 * 6 * 8)
    monkeypatch.setattr(moments, "_BLOCK", 7 * 6 * 8)
    torch.testing.assert_close(score(ExpectedAttention(), view), whole, rtol=2e-4, atol=1e-30)
    exact = view._replace(queries=view.queries.double(), keys=view.keys.double(), values=view.values.double())
    expectation = by_definition(ExpectedAttention(), exact, lambda position: np.eye(8))
    np.testing.assert_allclose(whole.numpy(), expectation, rtol=2e-4, atol=1e-30)


@pytest.mark.parametrize("length", [3000, 9000])
def test_queries_are_undone_a_block_at_a_time(length: int) -> None:
    class Counting(Unrotated):
        def inverse(self, queries: Tensor, first: int) -> Tensor:
            sizes.append(queries.numel())
            assert first == 4 + sum(sizes[:-1]) // 256
            return super().inverse(queries, first)

    sizes: list[int] = []
    view = random_view(heads=2, group=2, length=length, dim=64)
    score(ExpectedAttention(), view._replace(rotation=Counting(64)))
    assert sum(sizes) == (length - 4) * 256
    assert max(sizes) <= moments._BLOCK


def test_low_precision_is_scored_in_fp32() -> None:
    view = random_view(heads=2, group=2, length=60, dtype=torch.bfloat16)
    exact = view._replace(queries=view.queries.float(), keys=view.keys.float(), values=view.values.float())
    torch.testing.assert_close(score(ExpectedAttention(), view), score(ExpectedAttention(), exact), rtol=1e-5, atol=0)


def test_ties_go_to_the_lower_index() -> None:
    view = random_view(heads=1, group=1, length=12)
    view.keys[:], view.values[:] = view.keys[:, :1].clone(), view.values[:, :1].clone()
    positions, _ = select(score(ExpectedAttention(), view), torch.tensor([7]))
    assert positions.tolist() == list(range(7))


def llama_rotation(dim: int, **parameters: float | str) -> Rotary:
    config = LlamaConfig(head_dim=dim, hidden_size=dim, num_attention_heads=1)
    config.rope_parameters = {"rope_type": "default", "rope_theta": 100.0, **parameters}
    return Rotary(Embedding(LlamaRotaryEmbedding(config), None), dim, slice(0, dim // 2), False, False)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 5000), st.integers(5, 40), st.integers(0, 99))
def test_only_relative_positions_matter(offset: int, length: int, seed: int) -> None:
    """Rows whose positions begin behind padding score as if they began at 0."""
    view = random_view(heads=2, group=2, length=length, seed=seed)._replace(rotation=llama_rotation(8))
    embedding = view.rotation.embedding.module
    scores = []
    for first in (0, offset):
        positions = torch.arange(first, first + length)[None]
        queries, keys = apply_rotary_pos_emb(view.queries[None], view.keys[None], *embedding(view.keys, positions))
        scores.append(score(ExpectedAttention(), view._replace(queries=queries[0], keys=keys[0])))
    torch.testing.assert_close(scores[1], scores[0], rtol=5e-3, atol=1e-7)


def test_a_view_without_its_rotation_is_refused() -> None:
    with pytest.raises(MethodError, match="layer 0"):
        score(ExpectedAttention(), random_view()._replace(rotation=None))


@pytest.mark.parametrize("chunk", [1, 7, 30])
def test_chunks_keep_what_a_whole_prompt_keeps(chunk: int) -> None:
    model, ids = build("llama"), prompt(length=60)
    model.set_attn_implementation("winnow")
    caches = []
    for step in (60, chunk):
        caches.append(winnow.CompressedCache(model, winnow.method("expectedattention", 12), prompt_length=60))
        with torch.no_grad():
            for start in range(0, 60, step):
                model(ids[:, start : start + step], past_key_values=caches[-1])
    for layer in range(3):
        for whole, chunked in zip(*(cache.kept(layer) for cache in caches), strict=True):
            assert torch.equal(whole, chunked)


@pytest.mark.parametrize(
    "wrong",
    [{"future": 0}, {"future": 10**9}, {"sinks": -1}, {"covariance": 1}, {"value_norm": "yes"}, {"epsilon": -0.1}],
    ids=str,
)
def test_wrong_parameters_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(MethodError, match="must be"):
        ExpectedAttention(**wrong)  # type: ignore[arg-type]
