"""K-VEC against Algorithm 1, written out in float64, and its state across layers, rows and prompts."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import winnow
from support.definitions import MODELS, SHAPES, assert_scores, attention, pooled
from support.families import build, prompt
from support.ready import ready
from support.views import head_slots, random_view, score, shown_to
from winnow.allocate import Uniform
from winnow.errors import MethodError
from winnow.score import KVEC, Ranking, SnapKV
from winnow.score import window as window_module
from winnow.score.kvec import _focus
from winnow.select import select
from winnow.view import LayerView

MODEL = build("llama", num_hidden_layers=3)
MODEL.set_attn_implementation("winnow")


def entropy(votes: np.ndarray) -> float:
    """Entropy of the votes as shares of their sum; that of equal shares where there are none."""
    total = float(sum(votes))
    if total == 0:
        return float(np.log(len(votes)))
    return -sum(vote / total * float(np.log(vote / total)) for vote in votes.tolist() if vote > 0)


def by_definition(scorer: KVEC, view: LayerView) -> tuple[np.ndarray, np.ndarray]:
    """P' and P of Algorithm 1 for the tokens outside the window, the window +inf."""
    weights = attention(view)
    heads, length, _ = view.keys.shape
    group = weights.shape[0] // heads
    outside = length - scorer.window
    if outside <= 0:
        full = np.full((heads, length), np.inf)
        return full, full
    wide_rows = min(scorer.wide_window, length)
    near, wide = [], []
    for head in range(heads):
        own = weights[head * group : (head + 1) * group]
        near.append(pooled(own[:, -scorer.window :, :outside].mean(axis=1).mean(axis=0), scorer.kernel, scorer.pool))
        wide.append(pooled(own[:, -wide_rows:, :outside].mean(axis=1).mean(axis=0), scorer.kernel, scorer.pool))
    focus = [float(np.std(row)) if scorer.criterion == "std" else -entropy(row) for row in near]
    for head in sorted(range(heads), key=lambda h: (focus[h], h))[: scorer.wide_heads]:
        near[head] = wide[head]
    importance = np.zeros(outside)
    for query in range(length - scorer.window, length):
        importance += np.max([weights[h, query, :outside] for h in range(weights.shape[0])], axis=0)
    importance /= scorer.window
    covered = np.zeros(length) if view.coverage is None else view.coverage.double().numpy()
    gain = importance * (1 - covered[:outside] / (view.layer + 1))
    window = np.full((heads, scorer.window), np.inf)
    priority = np.stack(near)
    return np.hstack([priority + scorer.novelty * gain, window]), np.hstack([priority, window])


def with_coverage(view: LayerView, layer: int, seed: int = 0) -> LayerView:
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, layer + 1, (view.keys.shape[1],), generator=generator, dtype=torch.int32)
    return view._replace(layer=layer, layers=layer + 2, coverage=counts)


SCORERS = [
    KVEC(),
    KVEC(window=4, wide_window=8, kernel=1),
    KVEC(window=3, wide_window=3, wide_heads=1, novelty=0.3),
    KVEC(window=5, wide_window=40, wide_heads=99, pool="avg"),
    KVEC(window=2, wide_window=6, wide_heads=0, novelty=2),
    KVEC(window=2, wide_window=6, wide_heads=2, novelty=0),
    KVEC(window=2, wide_window=6, wide_heads=1, novelty=0, criterion="entropy"),
    KVEC(window=4, wide_window=8, wide_heads=2, kernel=1, pool="avg", criterion="entropy"),
]


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("scorer", SCORERS, ids=str)
def test_priorities(scorer: KVEC, shape: tuple[int, ...], model: dict[str, float]) -> None:
    for layer in (0, 3):
        view = with_coverage(random_view(*shape, **model), layer)
        ranking = scorer.rank(shown_to(scorer, view))
        adjusted, own = by_definition(scorer, view)
        assert_scores(ranking.scores, adjusted)
        if ranking.basis is not None:
            assert_scores(ranking.basis, own)


@pytest.mark.parametrize("scorer", SCORERS, ids=str)
@pytest.mark.parametrize("slots", [[16, 16, 16], [16, 20, 41], [90, 17, 0]])
def test_the_best_by_own_votes_stay_for_sure(scorer: KVEC, slots: list[int]) -> None:
    view = with_coverage(random_view(heads=3, group=2, length=90), 2)
    ranking = scorer.rank(shown_to(scorer, view))
    final = scorer.refine(ranking, torch.tensor(slots), view)
    _, own = by_definition(scorer, view)
    for head, count in enumerate(slots):
        sure = int(max(0, count - scorer.window) * scorer.sure)
        best = np.argsort(-own[head], kind="stable")[: scorer.window + sure]
        assert set(final[head].isinf().nonzero()[:, 0].tolist()) == set(best.tolist())
        others = ~final[head].isinf()
        assert torch.equal(final[head][others], ranking.scores[head][others])


def test_selection_by_hand() -> None:
    # One head, no pooling: half of the 4 slots outside the window go to the best of P, the others to P'.
    scorer = KVEC(window=1, wide_window=1, kernel=1, sure=0.5)
    adjusted = torch.tensor([[0.1, 0.9, 0.2, 0.3, 0.8, 0.4, torch.inf]])
    own = torch.tensor([[0.6, 0.1, 0.5, 0.3, 0.1, 0.2, torch.inf]])
    final = scorer.refine(Ranking(adjusted, own), torch.tensor([5]), random_view(length=7))
    assert select(final, torch.tensor([5])).positions.tolist() == [0, 1, 2, 4, 6]


def test_criteria_choose_different_heads() -> None:
    """σ is small where all votes are small; the entropy looks at nothing but how they are spread."""
    votes = torch.tensor([[0.3, 0.3, 0.2, 0.1], [0.02, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert _focus(votes, "std", None).argsort(stable=True).tolist() == [2, 1, 0]
    assert _focus(votes, "entropy", None).argsort(stable=True).tolist() == [2, 0, 1]
    assert float(_focus(votes, "entropy", None)[2]) == pytest.approx(-np.log(4))


@pytest.mark.parametrize("seed", range(4))
def test_tokens_that_a_head_lacks_change_nothing_of_its_own_votes(seed: int) -> None:
    """One of two heads lacks some, and both vote with the wide window, in the order of their focus."""
    scorer, alone = (KVEC(window=2, wide_window=6, wide_heads=heads, novelty=0, kernel=5) for heads in (2, 1))
    view = random_view(heads=2, group=2, length=16, seed=seed)
    absent = torch.zeros(2, 16, dtype=torch.bool)
    absent[1, 5:9] = True
    held = ~absent[1]
    keys, values = (each.masked_fill(absent[..., None], 0) for each in (view.keys, view.values))
    positions = torch.arange(16).repeat(2, 1).masked_fill(absent, -1)
    found = scorer.rank(view._replace(keys=keys, values=values, absent=absent, positions=positions)).scores
    own = view._replace(queries=view.queries[2:, -6:], keys=keys[1:, held], values=values[1:, held])
    torch.testing.assert_close(found[1, held], alone(own)[0])


def test_without_its_two_parts_it_is_snapkv() -> None:
    view = with_coverage(random_view(heads=4, length=80), 2)
    plain = KVEC(window=8, wide_heads=0, novelty=0)
    torch.testing.assert_close(score(plain, view), score(SnapKV(window=8), view), rtol=1e-5, atol=1e-7)


def test_blocks_do_not_change_priorities(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = KVEC(window=7, wide_window=30)
    view = random_view(heads=2, group=2, length=61)
    whole = scorer.rank(shown_to(scorer, view))
    for rows in (4, 7, 11):
        monkeypatch.setattr(window_module, "_MOST_ROWS", rows)
        parts = scorer.rank(shown_to(scorer, view))
        torch.testing.assert_close(parts.scores, whole.scores, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(parts.basis, whole.basis, rtol=1e-5, atol=1e-7)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**31), st.data())
def test_any_prompt_and_budget(length: int, heads: int, group: int, seed: int, data: st.DataObject) -> None:
    scorer = KVEC(window=4, wide_window=9)
    view = with_coverage(random_view(heads, group, length, seed=seed), 1, seed)
    least = min(scorer.window, length)
    total = data.draw(st.integers(heads * least, heads * length))
    ranking = scorer.rank(shown_to(scorer, view))
    slots = head_slots(Uniform(), ranking.scores, total, least)
    positions, offsets = select(scorer.refine(ranking, slots, view), slots)
    for head, (start, stop) in enumerate(pairwise(offsets.tolist())):
        kept = set(positions[start:stop].tolist())
        assert len(kept) == int(slots[head])
        assert kept >= set(range(length - least, length))


# --- coverage, in a model ------------------------------------------------------------------------------------


class Recorded(KVEC):
    """Notes the coverage that it is shown."""

    seen: list[tuple[int, list[int]]] = []  # noqa: RUF012

    def rank(self, view: LayerView) -> Ranking:
        self.seen.append((view.layer, view.coverage.tolist()))
        return super().rank(view)


def recorded(budget: int) -> winnow.Method:
    Recorded.seen.clear()
    return replace(winnow.method("kvec", budget, window=4, wide_window=8), scorer=Recorded(window=4, wide_window=8))


def expected_coverage(cache: winnow.CompressedCache, row: int, length: int) -> list[tuple[int, list[int]]]:
    counts, result = np.zeros(length, dtype=int), []
    for layer in range(3):
        result.append((layer, counts.tolist()))
        for token in {int(t) for head in cache.kept(layer, row=row) for t in head}:
            counts[token] += 1
    return result


def test_coverage_counts_the_layers_that_kept_a_token() -> None:
    cache = winnow.CompressedCache(MODEL, recorded(10))
    with torch.no_grad():
        MODEL(prompt(length=50), past_key_values=cache)
    assert Recorded.seen == expected_coverage(cache, 0, 50)


def test_rows_of_a_batch_have_a_coverage_of_their_own() -> None:
    lengths = [50, 31, 12]
    ids = torch.zeros(3, 50, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, 50 - length :], mask[row, 50 - length :] = prompt(length=length, seed=row)[0], 1
    cache = winnow.CompressedCache(MODEL, recorded(9))
    with torch.no_grad():
        MODEL(ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0), past_key_values=cache)
    seen = list(Recorded.seen)
    expected = [expected_coverage(cache, row, length) for row, length in enumerate(lengths)]
    assert seen == [expected[row][layer] for layer in range(3) for row in range(3)]


def test_nothing_is_left_of_one_prompt_for_the_next() -> None:
    method = ready("kvec(window=4, wide_window=8)", 9, (3, 2))

    def kept(cache: winnow.CompressedCache) -> list[list[int]]:
        with torch.no_grad():
            MODEL(prompt(length=40), past_key_values=cache)
        return [head.tolist() for layer in range(3) for head in cache.kept(layer)]

    first = kept(winnow.CompressedCache(MODEL, method))
    reused = winnow.CompressedCache(MODEL, method)
    with torch.no_grad():
        MODEL(prompt(length=23, seed=5), past_key_values=reused)
    reused.reset()
    assert kept(reused) == first
    assert reused.compression.coverage._counts == {}


def test_forks_of_a_waiting_prompt_do_not_share_coverage() -> None:
    waiting = winnow.CompressedCache(MODEL, winnow.method("full"), defer=True)
    with torch.no_grad():
        MODEL(prompt(length=40), past_key_values=waiting)
    alone = winnow.CompressedCache(MODEL, winnow.method("kvec", 20))
    with torch.no_grad():
        MODEL(prompt(length=40), past_key_values=alone)
    for _ in range(2):
        fork = waiting.compressed_by(winnow.method("kvec", 20))
        for layer in range(3):
            assert [head.tolist() for head in fork.kept(layer)] == [head.tolist() for head in alone.kept(layer)]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: KVEC(window=0),
        lambda: KVEC(window=16, wide_window=15),
        lambda: KVEC(wide_heads=-1),
        lambda: KVEC(novelty=-0.1),
        lambda: KVEC(sure=1.1),
        lambda: KVEC(kernel=2),
        lambda: KVEC(pool="median"),  # type: ignore[arg-type]
        lambda: KVEC(criterion="sd"),  # type: ignore[arg-type]
    ],
)
def test_wrong_parameters_are_refused(wrong: object) -> None:
    with pytest.raises(MethodError, match="must be"):
        wrong()  # type: ignore[operator]
