"""ApertureKV: query diversification (Eq. 8-12) and redundancy-aware budgets (Eq. 13-17), in float64 by the letter."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import winnow
from support.definitions import MODELS, SHAPES, assert_scores, pooled
from support.views import head_slots, one_layer, random_view, score, shown_to
from winnow.allocate import RABA, Pyramid, Uniform
from winnow.allocate import raba as raba_module
from winnow.allocate.raba import distinctiveness, distributions
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


# --- budgets -------------------------------------------------------------------------------------------------


def softmax(values: np.ndarray) -> np.ndarray:
    weights = np.exp(values - values.max())
    return weights / weights.sum()


def divergence_by_definition(p: np.ndarray, q: np.ndarray, kind: str) -> float:
    def kl(a: np.ndarray, b: np.ndarray) -> float:
        return float(sum(x * np.log(x / y) for x, y in zip(a, b, strict=True) if x > 0))

    if kind == "kl":
        return kl(p, q)
    if kind == "ce":
        return float(-sum(x * np.log(y) for x, y in zip(p, q, strict=True)))
    middle = (p + q) / 2
    return (kl(p, middle) + kl(q, middle)) / 2


def shares_by_definition(values: np.ndarray, outside: int, kind: str) -> np.ndarray:
    """Slots of every head before rounding, from scores [H, M] outside the window."""
    heads, length = values.shape
    s = np.stack([softmax(row) for row in values])
    best = sorted(product(range(heads), range(length)), key=lambda e: (-s[e], e[1], e[0]))[:outside]
    won = np.array([sum(1 for head, _ in best if head == h) for h in range(heads)], dtype=float)
    distinct = np.array(
        [np.mean([divergence_by_definition(s[h], s[o], kind) for o in range(heads) if o != h]) for h in range(heads)]
    )
    product_ = distinct / distinct.sum() * won
    return product_ / product_.sum() * outside


@pytest.mark.parametrize("kind", ["jsd", "kl", "ce"])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scale", [1.0, 0.01, 1e-5])
def test_budgets_equal_the_formula(kind: str, seed: int, scale: float) -> None:
    heads, length, window = 4, 60, 5
    rng = np.random.default_rng(seed)
    values = rng.random((heads, length - window)) ** 6 * scale * np.array([[1.0], [2.0], [0.5], [1.0]])
    scores = torch.from_numpy(np.hstack([values, np.full((heads, window), np.inf)])).float()
    exact_values = scores[:, : length - window].double().numpy()
    for total in (heads * window + 1, 70, 150):
        shares = shares_by_definition(exact_values, total - heads * window, kind)
        slots = head_slots(RABA(kind), scores, total, window)
        assert int(slots.sum()) == total
        if shares.max() <= length - window:  # nothing is clamped
            np.testing.assert_array_less(np.abs(slots.numpy() - window - shares), 1 + 1e-6)


def test_published_rounding_floors() -> None:
    rng = np.random.default_rng(1)
    values = rng.random((3, 50)) ** 4
    scores = torch.from_numpy(np.hstack([values, np.full((3, 4), np.inf)])).float()
    total = 3 * 14 + 2  # b = 10, the two slots beyond it are lost
    shares = shares_by_definition(scores[:, :50].double().numpy(), 30, "jsd")
    slots = RABA(rounding="paper").head_slots(scores, one_layer(3, 54, total, 4), 0)
    assert slots.tolist() == (np.floor(shares).astype(int) + 4).tolist()


@pytest.mark.parametrize("kind", ["jsd", "kl", "ce"])
def test_divergences_do_not_depend_on_blocks(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s = distributions(torch.rand(5, 103, generator=torch.Generator().manual_seed(3)) * 4)
    whole = distinctiveness(s, kind)  # type: ignore[arg-type]
    expected = [
        np.mean([divergence_by_definition(s[h].numpy(), s[o].numpy(), kind) for o in range(5) if o != h])
        for h in range(5)
    ]
    np.testing.assert_allclose(whole.numpy(), expected, rtol=1e-9)
    monkeypatch.setattr(raba_module, "_BLOCK", 25 * 7)
    np.testing.assert_allclose(distinctiveness(s, kind).numpy(), expected, rtol=1e-9)  # type: ignore[arg-type]


def test_small_differences_survive() -> None:
    """The softmax of probabilities is nearly uniform: divergences around 1e-9 still order heads rightly."""
    length = 4000
    scores = torch.full((3, length), 1 / length)
    scores[1, :10] += 2e-3  # unlike the other two
    d = distinctiveness(distributions(scores), "jsd")
    assert d[1] > 1.5 * d[0] > 0
    assert d[0] == pytest.approx(float(d[2]), rel=1e-6)


def test_memory_does_not_grow_with_pairs_times_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = 0
    xlogy = torch.special.xlogy

    def watched(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        nonlocal largest
        largest = max(largest, a.numel())
        return xlogy(a, b)

    monkeypatch.setattr(torch.special, "xlogy", watched)
    s = distributions(torch.rand(64, 20_000))
    distinctiveness(s, "jsd")
    assert largest <= max(raba_module._BLOCK, s.numel())
    assert largest < 64 * 64 * 20_000 / 40


def test_heads_that_do_not_differ_share_by_what_they_win() -> None:
    same = torch.rand(1, 40, generator=torch.Generator().manual_seed(0)).repeat(4, 1)
    assert head_slots(RABA(), same, 42).tolist() == [11, 11, 10, 10]
    assert head_slots(RABA(), torch.zeros(3, 20), 10).tolist() == [4, 3, 3]
    assert head_slots(RABA(), torch.rand(1, 20), 7).tolist() == [7]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 2**31), st.sampled_from(["jsd", "kl", "ce"]), st.data())
def test_budgets_conserve(heads: int, length: int, seed: int, kind: str, data: st.DataObject) -> None:
    guaranteed = data.draw(st.integers(0, length))
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, data.draw(st.sampled_from([1, 2, 1000])), (heads, length), generator=generator) / 10
    scores[:, length - guaranteed :] = torch.inf
    total = data.draw(st.integers(heads * guaranteed, heads * length))
    slots = head_slots(RABA(kind), scores, total, guaranteed)
    assert int(slots.sum()) == total
    assert (slots >= guaranteed).all()
    assert (slots <= length).all()


def test_parts_are_usable_alone() -> None:
    view = random_view(heads=4, group=2, length=120)
    for name in ("snapkv+raba", "knorm+raba", "keydiff+raba(kl)+pyramid", "snapkv(diversify=0.45)+ada", "h2o+raba"):
        chosen = winnow.method(name, 20)
        plan = one_layer(4, 120, 80, min(chosen.scorer.guaranteed, 120))
        positions, offsets = chosen.select(shown_to(chosen.scorer, view), plan)
        assert len(positions) == 80 == int(offsets[-1])
    composed = winnow.method("aperturekv+pyramid", 20)
    assert composed.allocator == RABA(across=Pyramid())
    assert winnow.method("aperturekv", 20).allocator == RABA(across=Uniform())


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: SnapKV(diversify=-0.1),
        lambda: SnapKV(over="window"),  # type: ignore[arg-type]
        lambda: RABA("cosine"),  # type: ignore[arg-type]
        lambda: RABA(rounding="floor"),  # type: ignore[arg-type]
    ],
)
def test_wrong_parameters_are_refused(wrong: object) -> None:
    with pytest.raises(MethodError, match="must be"):
        wrong()  # type: ignore[operator]
