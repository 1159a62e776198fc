"""TriAttention against its series in float64, one key, one pair of channels and one distance at a time."""

from __future__ import annotations

import cmath
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.definitions import SHAPES, assert_scores
from support.views import random_view, score
from winnow.cache.rotary import Unrotated
from winnow.errors import MethodError
from winnow.heads import QueryCenters
from winnow.score import TriAttention
from winnow.view import LayerView

SCALE = 1.3
"""Stretch of the rotation, as YaRN has one."""


def frequency(pair: int) -> float:
    return 0.6**pair


class Neighbors:
    """Pairs (0, 1), (2, 3), … turn at frequencies of their own, as complex numbers."""

    def _turned(self, states: Tensor, positions: list[int], back: bool) -> Tensor:
        pairs = torch.view_as_complex(states.double().unflatten(-1, (-1, 2)).contiguous())
        for pair in range(pairs.shape[-1]):
            for place, position in enumerate(positions):
                factor = SCALE * cmath.exp(1j * frequency(pair) * position)
                pairs[:, place, pair] *= 1 / factor if back else factor
        return torch.view_as_real(pairs).flatten(-2).float()

    def inverse(self, queries: Tensor, first: int) -> Tensor:
        return self._turned(queries, list(range(first, first + queries.shape[1])), back=True)

    def mean(self, first: int, count: int) -> Tensor:
        identity = torch.eye(self.dim)[:, None].expand(-1, count, -1)
        return self._turned(identity, list(range(first, first + count)), back=False).mean(dim=1).T

    def pair_sizes(self, states: Tensor) -> Tensor:
        return states.float().unflatten(-1, (-1, 2)).norm(dim=-1)

    def __init__(self, dim: int) -> None:
        self.dim = dim


def pairs_of(states: np.ndarray, position: int) -> np.ndarray:
    """[D / 2] complex: the pairs of a rotated query or key [D] before their rotation."""
    pairs = states[::2] + 1j * states[1::2]
    return np.array([p / (SCALE * cmath.exp(1j * frequency(f) * position)) for f, p in enumerate(pairs)])


def by_definition(scorer: TriAttention, view: LayerView, positions: list[list[int]] | None = None) -> np.ndarray:
    """positions: those that each head holds; the queries of all tokens are in the view."""
    queries, keys = view.queries.double().numpy(), view.keys.double().numpy()
    heads, length = len(keys), queries.shape[1]
    held = positions or [list(range(length)) for _ in range(heads)]
    result = np.full(keys.shape[:2], np.inf)
    for head in range(heads):
        after = [t for t in held[head] if t >= scorer.sinks]
        if not after:
            continue
        members = []
        group = len(queries) // heads
        for query_head in range(head * group, (head + 1) * group):
            asked = [pairs_of(queries[query_head, t], t) for t in range(scorer.sinks, length)]
            center, sizes = np.mean(asked, axis=0), np.mean(np.abs(asked), axis=0)
            values = []
            for token in after:
                key = pairs_of(keys[head, token], token)
                worth, distances = 0.0, []
                step = 1
                while step <= scorer.horizon:
                    distances.append(length + step - token)
                    step *= 2
                for f in range(len(key)):
                    size = SCALE**2 * abs(center[f]) * abs(key[f])
                    angle = cmath.phase(center[f]) - cmath.phase(key[f])
                    worth += size * np.mean([math.cos(frequency(f) * d + angle) for d in distances])
                    worth += SCALE**2 * (sizes[f] - abs(center[f])) * abs(key[f])
                values.append(worth)
            spread = max(np.std(values), 1e-6)
            members.append((np.array(values) - np.mean(values)) / spread)
        result[head, after] = np.max(members, axis=0)
    return result


def turning(view: LayerView) -> LayerView:
    return view._replace(rotation=Neighbors(view.keys.shape[-1]))


@pytest.mark.parametrize("shape", [*SHAPES, (2, 2, 4, 4), (1, 3, 5, 4)], ids=str)
@pytest.mark.parametrize("scorer", [TriAttention(), TriAttention(sinks=0, horizon=5)], ids=str)
def test_series(scorer: TriAttention, shape: tuple[int, ...]) -> None:
    view = turning(random_view(*shape, sharpness=1.0))
    view = view._replace(queries=view.queries + 0.7)  # a center apart from zero
    np.testing.assert_allclose(score(scorer, view).numpy(), by_definition(scorer, view), rtol=2e-3, atol=2e-4)


def test_concentrated_queries_find_what_lies_at_their_distance() -> None:
    """One pair, all queries alike: the key that the center attends to most has the highest score."""
    view = random_view(1, 1, 40, dim=2)
    rotation = Neighbors(2)
    before = torch.tensor([[1.0, 0.0]]).expand(1, 40, 2)
    queries = rotation._turned(before, list(range(40)), back=False)
    keys = rotation._turned(before, list(range(40)), back=False)
    view = view._replace(queries=queries, keys=keys, rotation=rotation)
    scores = score(TriAttention(sinks=0, horizon=1), view)[0]
    distances = torch.arange(41, 1, -1.0)
    assert torch.equal(scores.argsort(), torch.cos(distances).argsort())


def test_layers_without_rotation_have_channels_of_their_own() -> None:
    view = random_view(heads=2, group=2, length=30)
    queries = view.queries[:, 4:].double()
    center, size = queries.mean(1), queries.abs().mean(1)
    keys = view.keys[:, 4:].double().repeat_interleave(2, dim=0)
    series = (keys * center[:, None]).sum(-1) + (keys.abs() * (size - center.abs())[:, None]).sum(-1)
    series = (series - series.mean(1, keepdim=True)) / series.std(1, correction=0, keepdim=True)
    assert isinstance(view.rotation, Unrotated)
    assert_scores(score(TriAttention(), view)[:, 4:], series.view(2, 2, -1).amax(1).numpy())


@settings(max_examples=25, deadline=None)
@given(st.integers(8, 24), st.integers(1, 6), st.lists(st.integers(0, 3), min_size=2, max_size=2), st.integers(0, 99))
def test_centers_carry_on_and_absent_columns_change_nothing(length: int, new: int, gaps: list[int], seed: int) -> None:
    scorer = TriAttention(horizon=64)
    whole = turning(random_view(2, 2, length + new, seed=seed, sharpness=1.0))
    whole = whole._replace(queries=whole.queries + 0.5)
    first = whole._replace(queries=whole.queries[:, :length], keys=whole.keys[:, :length])
    counted = scorer.rank(first).moments
    held = [[t for t in range(length + new) if not 4 <= t < 4 + gap] for gap in gaps]
    positions = torch.arange(length + new).repeat(2, 1)
    for head, gap in enumerate(gaps):
        positions[head, 4 : 4 + gap] = -1
    absent = positions < 0
    fold = whole._replace(
        queries=whole.queries[:, length:],
        keys=whole.keys.masked_fill(absent[..., None], 0),
        absent=absent,
        positions=positions,
        moments=counted,
    )
    scores = scorer(fold).numpy()
    expected = by_definition(scorer, whole, held)
    there = ~absent.numpy()
    np.testing.assert_allclose(scores[there], expected[there], rtol=2e-3, atol=5e-4)
    assert not np.isnan(scores).any()


def test_centers_of_another_text() -> None:
    """The queries of this text do not matter then, nor which of its tokens are held."""
    measured = turning(random_view(2, 2, 30, seed=5, sharpness=1.0))
    view = turning(random_view(2, 2, 30, seed=6, layer=1, layers=2))
    counted = TriAttention().rank(measured).moments
    assert counted is not None
    assert counted.sizes is not None
    other = torch.randn_like(counted.mean)
    sizes = torch.nn.functional.pad(counted.sizes, (0, 4))
    centers = QueryCenters(torch.stack([other, counted.mean]), torch.stack([sizes] * 2))
    scorer = TriAttention(centers=centers, horizon=100)
    shown = view._replace(queries=view.queries[:, :0])
    ranking = scorer.rank(shown)
    expected = by_definition(TriAttention(horizon=100), view._replace(queries=measured.queries))
    np.testing.assert_allclose(ranking.scores.numpy(), expected, rtol=2e-3, atol=2e-4)
    assert ranking.moments is None
    assert scorer.queries_needed(30) == 0
    assert not scorer.accumulates
    for wrong in (view._replace(layers=3), view._replace(queries=view.queries[:2, :0])):
        with pytest.raises(MethodError, match="winnow heads centers"):
            scorer(wrong)


def test_misuse() -> None:
    with pytest.raises(MethodError, match="rotation of layer 1"):
        TriAttention(centers=QueryCenters(torch.ones(2, 4, 8), torch.ones(2, 4, 8)))(
            random_view(layer=1, layers=2)._replace(rotation=None)
        )
    with pytest.raises(MethodError, match="rotation of layer 0"):
        score(TriAttention(), random_view()._replace(rotation=None))
    with pytest.raises(MethodError, match="horizon"):
        TriAttention(horizon=0)
    with pytest.raises(MethodError, match="horizon"):
        TriAttention(horizon=10**300)
    with pytest.raises(MethodError, match="centers must be a file"):
        TriAttention(centers=3)  # type: ignore[arg-type]
    with pytest.raises(MethodError, match="sinks"):
        TriAttention(sinks=-1)
