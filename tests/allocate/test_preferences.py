"""CAKE's and ZigZagKV's layer budgets against their formulas in float64, and what layers get before all are seen."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.views import random_view
from winnow.allocate import Cake, SlotPlan, SpanningAllocator, ZigZag
from winnow.allocate.cake import movement
from winnow.allocate.spanning import Claim
from winnow.allocate.zigzag import least_tokens
from winnow.errors import MethodError
from winnow.score.attention_sums import window_attention
from winnow.view import LayerView, WindowAttention


def attention(view: LayerView, rows: int) -> Tensor:
    """[Hq, w, N - w] float64: what the last queries pay to the tokens before them, by the definition."""
    heads, length, dim = view.keys.shape
    group = view.queries.shape[0] // heads
    rows = min(rows, length)
    result = torch.zeros(view.queries.shape[0], rows, length - rows, dtype=torch.float64)
    for head in range(view.queries.shape[0]):
        for row in range(rows):
            position = length - rows + row
            logits = view.keys[head // group, : position + 1].double() @ view.queries[head, position].double()
            result[head, row] = (logits * dim**-0.5).softmax(0)[: length - rows]
    return result


def cake_preference(view: LayerView, rows: int, tau1: float, tau2: float) -> float:
    """P = H^(1/τ1)·V^(1/τ2)"""
    weights = attention(view, rows)
    spread = -sum(float(a) * math.log(float(a)) for a in weights.flatten() if a > 0) / len(weights)
    moved = 0.0
    for head in weights:
        for token in head.T.tolist():
            mean = sum(token) / len(token)
            moved += sum((a - mean) ** 2 for a in token) / (len(token) - 1)
    return spread ** (1 / tau1) * (moved / len(weights)) ** (1 / tau2)


def zigzag_need(view: LayerView, rows: int, share: float) -> float:
    """LMBA: the fewest tokens of a head that hold a share of what its queries pay to the prompt, mean over heads."""
    counts = []
    for head in attention(view, rows):
        mass = sorted(head.sum(0).tolist(), reverse=True)
        held, count = 0.0, 0
        while held < share * sum(mass) and count < len(mass):
            held, count = held + mass[count], count + 1
        counts.append(max(count, 1))
    return sum(counts) / len(counts)


@pytest.mark.parametrize("rows", [2, 5, 32])
@pytest.mark.parametrize(("tau1", "tau2"), [(1.0, 1.0), (1.6, 0.4), (0.4, 0.6)])
def test_cake_prefers_as_its_formula_says(rows: int, tau1: float, tau2: float) -> None:
    for seed in range(3):
        view = random_view(heads=2, group=3, length=48, seed=seed, sharpness=1.0 + seed)
        plan = SlotPlan(200, (2,), 48, 2)
        allocator = Cake(tau1, tau2, rows)
        claim = allocator.claim(torch.zeros(2, 48), window_attention(view, rows), plan)
        assert claim.weight == pytest.approx(cake_preference(view, rows, tau1, tau2), rel=1e-4)


@pytest.mark.parametrize("rows", [1, 5, 32])
@pytest.mark.parametrize("share", [0.5, 0.9, 1.0])
def test_zigzag_counts_the_tokens_that_hold_the_attention(rows: int, share: float) -> None:
    for seed in range(3):
        view = random_view(heads=2, group=2, length=40, seed=seed)
        found = least_tokens(window_attention(view, rows), share).double().mean()
        assert float(found) == pytest.approx(zigzag_need(view, rows, share), abs=0 if share < 1 else 4)


def test_zigzag_needs_no_token_more_than_hold_the_share_exactly() -> None:
    mass = torch.tensor([[0.5, 0.25, 0.25]])
    assert least_tokens(WindowAttention(1, mass, mass.square(), mass.sum(1)), 0.5).tolist() == [1]


def test_both_look_at_as_many_queries_as_published() -> None:
    assert (Cake().rows, ZigZag().rows) == (32, 32)


def test_rounding_moves_nothing() -> None:
    """Squares a little below what their mean says are those of tokens to which all queries pay the same."""
    mass, squares = torch.tensor([[1.0, 0.5]]), torch.tensor([[0.4999999, 0.125]])
    assert movement(WindowAttention(2, mass, squares, mass.sum(1))) == 0.0


def test_models_with_soft_capping_and_sinks_attend_as_ever() -> None:
    view = random_view(length=30, softcap=3.0, sinks=True)
    moments = window_attention(view, 4)
    assert bool((moments.mass.sum(1) < 4).all())
    assert bool((moments.squares <= moments.mass).all())


def test_a_prompt_within_the_window_gives_no_preference() -> None:
    for length in (1, 8):
        moments = window_attention(random_view(length=length), 8)
        assert movement(moments) == 0.0
        assert least_tokens(moments, 0.9).tolist() == [1] * 4


def shares(allocator: SpanningAllocator, weights: list[float], plan: SlotPlan) -> list[float]:
    """Real slots of layers by the formula, what exceeds a prompt given to the others in proportion to their weights."""
    least = allocator.least(plan).tolist()  # type: ignore[attr-defined]
    weights = [weight * heads for weight, heads in zip(weights, plan.heads, strict=True)]
    most = [heads * plan.length for heads in plan.heads]
    full: set[int] = set()
    while True:
        left = plan.slots - sum(most[i] if i in full else least[i] for i in range(len(least)))
        total = sum(weight for i, weight in enumerate(weights) if i not in full)
        real = [most[i] if i in full else least[i] + left * weights[i] / total for i in range(len(least))]
        over = {i for i, each in enumerate(real) if i not in full and each > most[i]}
        if not over:
            return real
        full |= over


@st.composite
def preferences(draw: st.DrawFn) -> tuple[SpanningAllocator, list[float], SlotPlan]:
    layers, length = draw(st.integers(1, 6)), draw(st.integers(1, 60))
    heads = draw(st.integers(1, 4))
    guaranteed = draw(st.integers(0, length))
    weights = draw(st.lists(st.floats(0.01, 100), min_size=layers, max_size=layers))
    slots = draw(st.integers(layers * heads * guaranteed, layers * heads * length))
    allocator = draw(st.sampled_from([Cake(), ZigZag(), ZigZag(floor=0.0), ZigZag(floor=1.0)]))
    return allocator, weights, SlotPlan(slots, (heads,) * layers, length, guaranteed)


@settings(max_examples=200, deadline=None)
@given(preferences())
def test_totals_follow_the_formula_and_shrink_as_layers_come(
    case: tuple[SpanningAllocator, list[float], SlotPlan],
) -> None:
    allocator, weights, plan = case
    claims = [Claim(weight) for weight in weights]
    steps = [allocator.totals(claims[: seen + 1], plan) for seen in range(len(claims))]
    for now, later in pairwise(steps):
        assert all(after <= before for before, after in zip(now, later, strict=False))
    assert all(sum(step) <= plan.slots + len(step) for step in steps)
    assert sum(steps[-1]) == plan.slots
    for total, real, heads in zip(steps[-1], shares(allocator, weights, plan), plan.heads, strict=True):
        assert abs(total - real) < 1 + 1e-6
        assert heads * plan.guaranteed <= total <= heads * plan.length


def test_layers_that_prefer_nothing_get_the_same() -> None:
    plan = SlotPlan(90, (2, 2, 2), 40, 4)
    assert Cake().totals([Claim(0.0)] * 3, plan) == [30, 30, 30]
    assert ZigZag().totals([Claim(7.0)] * 3, plan) == [30, 30, 30]


def test_what_the_others_cannot_hold_goes_to_layers_that_nobody_prefers() -> None:
    assert Cake().totals([Claim(0.0), Claim(1.0)], SlotPlan(150, (1, 1), 100, 4)) == [50, 100]


def test_layers_of_more_heads_get_more() -> None:
    assert Cake().totals([Claim(1.0), Claim(1.0)], SlotPlan(80, (2, 6), 40, 0)) == [20, 60]


def test_what_later_layers_get_for_sure_is_no_earlier_one_s() -> None:
    assert Cake().totals([Claim(1.0)], SlotPlan(100, (1, 1), 100, 10)) == [91]


def test_zigzag_by_hand() -> None:
    # B = 20, B_min = 4; LMBA 1 and 3: 4 + 16·2·1/4 = 12 and 4 + 16·2·3/4 = 28, for each of two heads
    plan = SlotPlan(80, (2, 2), 100, 0)
    assert ZigZag().totals([Claim(1.0), Claim(3.0)], plan) == [24, 56]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Cake(tau1=0),
        lambda: Cake(tau1=0.005),
        lambda: Cake(tau2=-1),
        lambda: Cake(rows=1),
        lambda: ZigZag(share=0),
        lambda: ZigZag(share=1.5),
        lambda: ZigZag(floor=-0.1),
        lambda: ZigZag(rows=0),
    ],
)
def test_wrong_parameters_are_refused(wrong) -> None:
    with pytest.raises(MethodError):
        wrong()
