"""ApertureKV's redundancy-aware budgets (Eq. 13-17), in float64 by the letter."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import winnow
from support.views import head_slots, one_layer, random_view, shown_to
from winnow.allocate import RABA, Pyramid, Uniform
from winnow.allocate import raba as raba_module
from winnow.allocate.ada import winners_per_head
from winnow.allocate.raba import distinctiveness, distributions
from winnow.errors import MethodError


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


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 8), st.integers(300, 4000), st.floats(1e-3, 10), st.integers(0, 2**31))
def test_cross_entropy_as_printed_does_not_depend_on_the_scores(
    heads: int, length: int, concentration: float, seed: int
) -> None:
    """Any two distributions that are nearly uniform have the cross-entropy ln N, to within 2.5/N."""
    scores = torch.from_numpy(np.random.default_rng(seed).dirichlet(np.full(length, concentration), heads))
    found = distinctiveness(distributions(scores), "ce")
    assert float((found - np.log(length)).abs().max()) < 2.5 / length


@pytest.mark.parametrize("seed", range(3))
def test_cross_entropy_of_attention_leaves_shares_to_what_heads_win(seed: int) -> None:
    """At the length of the paper's prompts; the Jensen-Shannon divergence of the same scores tells heads apart."""
    heads, length, outside = 8, 7942, 8 * 56
    spread = np.random.default_rng(seed).gamma(0.02 * np.arange(1, heads + 1)[:, None], size=(heads, length))
    scores = torch.from_numpy(spread / spread.sum(axis=1, keepdims=True))
    s = distributions(scores)
    ce, jsd = (distinctiveness(s, kind) for kind in ("ce", "jsd"))
    assert float(ce.max() / ce.min() - 1) < 1e-5
    assert float(jsd.max() / jsd.min() - 1) > 0.5
    won = winners_per_head(s, outside)
    assert head_slots(RABA("ce"), scores, outside).tolist() == won.tolist()
    assert head_slots(RABA("jsd"), scores, outside).tolist() != won.tolist()


@pytest.mark.parametrize("kind", ["jsd", "kl", "ce"])
def test_two_heads_are_equally_distinct(kind: str) -> None:
    """Exactly by the symmetric divergence; by the others because they are nearly so of nearly uniform distributions."""
    attention = torch.rand(2, 500, generator=torch.Generator().manual_seed(4)) ** 9
    s = distributions(attention / attention.sum(dim=1, keepdim=True))
    one, other = distinctiveness(s, kind).tolist()  # type: ignore[arg-type]
    assert one == pytest.approx(other, rel=1e-12 if kind == "jsd" else 1e-2)


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


@pytest.mark.parametrize("kind", ["jsd", "kl", "ce"])
def test_more_scores_than_the_guaranteed_may_be_always_kept(kind: str) -> None:
    """They take no part, as if they were not there; of how many tokens, and of which heads, is the scorer's affair."""
    scores = torch.rand(3, 50, generator=torch.Generator().manual_seed(5)) * torch.tensor([[1.0], [3.0], [9.0]])
    scores[:, 46:] = torch.inf
    pinned = scores.clone()
    pinned[:, 7] = torch.inf
    left = torch.cat([scores[:, :7], scores[:, 8:]], dim=1)
    assert head_slots(RABA(kind), pinned, 60, 4).tolist() == head_slots(RABA(kind), left, 60, 4).tolist()
    pinned[1, 9], pinned[2] = torch.inf, torch.inf
    slots = head_slots(RABA(kind), pinned, 60, 4)
    assert int(slots.sum()) == 60
    assert int(slots.min()) >= 4


def test_columns_that_a_head_may_not_fill_win_nothing() -> None:
    """Most of a softmax is 0 where scores differ much; a head may have no other columns."""
    best, none = 1000.0, -torch.inf
    assert head_slots(RABA(), torch.tensor([[none, 0.0, best], [0.0, 0.0, best]]), 3, 0).tolist() == [1, 2]
    first = [3.0, 2.0, 1.0, 0.0, 0.0, 0.0]
    scores = torch.tensor([[none] * 6, first, first, first[::-1]])
    # One differs more from the others, and so gets more, beside one that may hold nothing but the last token.
    scores = torch.cat([scores, torch.full((4, 1), torch.inf)], dim=1)
    assert head_slots(RABA(), scores, 12, 1).tolist() == [1, 4, 3, 4]


@pytest.mark.parametrize("kind", ["jsd", "kl", "ce"])
def test_a_single_head_differs_from_no_other(kind: str) -> None:
    assert distinctiveness(distributions(torch.rand(1, 9)), kind).tolist() == [0.0]


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
        lambda: RABA("cosine"),  # type: ignore[arg-type]
        lambda: RABA(rounding="floor"),  # type: ignore[arg-type]
    ],
)
def test_wrong_parameters_are_refused(wrong: object) -> None:
    with pytest.raises(MethodError, match="must be"):
        wrong()  # type: ignore[operator]
