"""Allocators: conserved totals, limits, and the published formulas by hand and by brute force."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.views import head_slots
from winnow.allocate import Ada, Allocator, Plan, Pyramid, Uniform, round_exactly
from winnow.allocate.ada import winners_per_head
from winnow.allocate.pyramid import pyramid, pyramid_as_published
from winnow.allocate.rounding import water_fill
from winnow.errors import BudgetError, MethodError
from winnow.select import select

ALL = [Uniform(), Pyramid(), Pyramid(beta=3), Ada(), Ada(floor=0), Ada(floor=1), Ada(across=Pyramid())]
PAPER = [
    Uniform("paper"),
    Pyramid(rounding="paper"),
    Ada(rounding="paper", across=Uniform("paper")),
    Ada(rounding="paper", across=Pyramid(rounding="paper")),
]


@st.composite
def limits(draw: st.DrawFn) -> tuple[list[float], list[int], list[int], int]:
    count = draw(st.integers(1, 12))
    low = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    room = draw(st.lists(st.integers(0, 60), min_size=count, max_size=count))
    high = [a + b for a, b in zip(low, room, strict=True)]
    eighths = st.one_of(st.sampled_from([0, 12, 20, 80, 8000]), st.integers(-400, 16000))
    shares = [share / 8 for share in draw(st.lists(eighths, min_size=count, max_size=count))]
    return shares, low, high, draw(st.integers(sum(low), sum(high)))


@settings(max_examples=150, deadline=None)
@given(limits())
def test_rounding_conserves_and_respects_limits(case: tuple[list[float], list[int], list[int], int]) -> None:
    shares, low, high, total = case
    bounds = torch.tensor(low), torch.tensor(high)
    real = water_fill(torch.tensor(shares), total, *bounds)
    slots = round_exactly(torch.tensor(shares), total, *bounds)
    assert int(slots.sum()) == total
    assert (slots >= bounds[0]).all()
    assert (slots <= bounds[1]).all()
    assert ((slots - real).abs() < 1 + 1e-6).all()
    # one level for all: whoever is not at a limit is at share + level
    free = (real > bounds[0] + 1e-6) & (real < bounds[1] - 1e-6)
    levels = (real - torch.tensor(shares).double())[free]
    assert len(levels) == 0 or float(levels.max() - levels.min()) < 1e-6
    # larger remainders are rounded up before smaller ones, lower indices first
    whole = (real + 1e-9).floor()
    remainders = [round(remainder, 8) for remainder in (real - whole).tolist()]
    order = sorted(range(len(shares)), key=lambda i: (-remainders[i], i))
    rounded_up = (slots > whole)[order].tolist()
    assert rounded_up == sorted(rounded_up, reverse=True)


@pytest.mark.parametrize(
    ("shares", "total", "low", "high", "expected"),
    [
        ([1.5, 1.5, 1.0], 4, 0, 9, [2, 1, 1]),  # equal remainders: the lower index
        ([3.0, 2.0, 1.0], 6, 0, 9, [3, 2, 1]),
        ([20.0, 2.0, 2.0], 24, 0, 10, [10, 7, 7]),  # what the limit frees is spread
        ([0.0, 4.0, 8.0], 12, 2, 9, [2, 3, 7]),  # what a floor takes is taken from the others
        ([0.0, 0.0, 0.0], 5, 0, 9, [2, 2, 1]),
        ([100.0, 0.0], 4, 2, 9, [2, 2]),
        ([0.1] * 10, 1, 0, 1, [1] + [0] * 9),
    ],
)
def test_rounding_by_hand(shares: list[float], total: int, low: int, high: int, expected: list[int]) -> None:
    count = len(shares)
    slots = round_exactly(
        torch.tensor(shares, dtype=torch.float64),
        total,
        torch.full((count,), low),
        torch.full((count,), high),
    )
    assert slots.tolist() == expected


def test_water_fill_by_weight() -> None:
    filled = water_fill(
        torch.tensor([8.0, 4.0]), 18, torch.tensor([0, 0]), torch.tensor([99, 99]), torch.tensor([2, 1])
    )
    assert filled.tolist() == [12.0, 6.0]


@pytest.mark.parametrize("total", [3, 21])
def test_impossible_totals_are_refused(total: int) -> None:
    with pytest.raises(BudgetError, match="between 4 and 20"):
        round_exactly(torch.ones(2), total, torch.tensor([2, 2]), torch.tensor([10, 10]))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    heads = tuple(draw(st.lists(st.integers(1, 8), min_size=1, max_size=9)))
    length = draw(st.integers(1, 300))
    guaranteed = draw(st.integers(0, min(length, 16)))
    slots = draw(st.integers(sum(heads) * max(1, guaranteed), sum(heads) * length))
    return Plan(slots, heads, length, guaranteed)


@settings(max_examples=100, deadline=None)
@given(plans(), st.sampled_from(ALL))
def test_layers_conserve(plan: Plan, allocator: Allocator) -> None:
    totals = allocator.layer_totals(plan)
    assert sum(totals) == plan.slots
    for heads, total in zip(plan.heads, totals, strict=True):
        assert heads * plan.guaranteed <= total <= heads * plan.length


@settings(max_examples=100, deadline=None)
@given(plans(), st.sampled_from(PAPER))
def test_published_layers_stay_within_the_prompt(plan: Plan, allocator: Allocator) -> None:
    for heads, total in zip(plan.heads, allocator.layer_totals(plan), strict=True):
        assert total % heads == 0
        assert heads * plan.guaranteed <= total <= heads * plan.length


@st.composite
def layers(draw: st.DrawFn) -> tuple[torch.Tensor, int, int]:
    heads, length = draw(st.integers(1, 6)), draw(st.integers(1, 30))
    guaranteed = draw(st.integers(0, length))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    values = draw(st.sampled_from([1, 2, 5, 1 << 20]))  # few values: many ties
    scores = torch.randint(0, values, (heads, length), generator=generator) / values
    scores[:, length - guaranteed :] = torch.inf
    return scores, guaranteed, draw(st.integers(heads * guaranteed, heads * length))


@settings(max_examples=100, deadline=None)
@given(layers(), st.sampled_from(ALL))
def test_heads_conserve(case: tuple[torch.Tensor, int, int], allocator: Allocator) -> None:
    scores, guaranteed, total = case
    slots = head_slots(allocator, scores, total, guaranteed)
    assert slots.dtype == torch.int64
    assert int(slots.sum()) == total
    assert (slots >= guaranteed).all()
    assert (slots <= scores.shape[1]).all()


@settings(max_examples=100, deadline=None)
@given(layers(), st.sampled_from(PAPER))
def test_published_heads_stay_within_the_prompt(case: tuple[torch.Tensor, int, int], allocator: Allocator) -> None:
    scores, guaranteed, total = case
    slots = head_slots(allocator, scores, total, guaranteed)
    assert (slots >= guaranteed).all()
    assert (slots <= scores.shape[1]).all()
    assert abs(int(slots.sum()) - total) <= 2 * len(slots)


def best_by_brute_force(scores: torch.Tensor, total: int) -> list[tuple[int, int]]:
    """(head, token) of the best of all heads together; equal scores by token, then by head."""
    heads, length = scores.shape
    entries = sorted((-float(scores[h, t]), t, h) for t in range(length) for h in range(heads))
    return [(head, token) for _, token, head in entries[:total]]


def won_by_brute_force(scores: torch.Tensor, total: int) -> list[int]:
    best = best_by_brute_force(scores, total)
    return [sum(1 for entry in best if entry[0] == head) for head in range(len(scores))]


@settings(max_examples=100, deadline=None)
@given(layers())
def test_competition_equals_brute_force(case: tuple[torch.Tensor, int, int]) -> None:
    scores, _, total = case
    won = winners_per_head(scores, total)
    assert won.tolist() == won_by_brute_force(scores, total)
    # what the heads then keep is what won
    positions, offsets = select(scores, won)
    owners = torch.arange(len(won)).repeat_interleave(offsets.diff())
    kept = list(zip(owners.tolist(), positions.tolist(), strict=True))
    assert kept == sorted(best_by_brute_force(scores, total))


@settings(max_examples=100, deadline=None)
@given(layers(), st.sampled_from([0.0, 0.2, 0.5, 1.0]))
def test_ada_equals_its_formula(case: tuple[torch.Tensor, int, int], floor: float) -> None:
    scores, guaranteed, total = case
    heads = scores.shape[0]
    slots = head_slots(Ada(floor=floor), scores, total, guaranteed)
    # among the scores that are not kept anyway: cap = (1 - f)·n_h + f·b, never off by one or more
    finite = scores[:, : scores.shape[1] - guaranteed]
    won = won_by_brute_force(finite, total - heads * guaranteed)
    mean = total / heads - guaranteed
    for slot, count in zip(slots.tolist(), won, strict=True):
        assert abs(slot - guaranteed - ((1 - floor) * count + floor * mean)) < 1 + 1e-6


def test_ada_without_floor_keeps_the_best_of_all_heads_together() -> None:
    scores = torch.rand(4, 100, generator=torch.Generator().manual_seed(0))
    scores[0] *= 3
    slots = head_slots(Ada(floor=0), scores, 80)
    assert slots.tolist() == won_by_brute_force(scores, 80)
    assert slots[0] > 40


def test_uniform_leftovers_go_to_lower_layers_and_heads() -> None:
    assert Uniform().layer_totals(Plan(11, (2, 2, 2), 9, 0)) == [4, 4, 3]
    assert head_slots(Uniform(), torch.zeros(3, 9), 11).tolist() == [4, 4, 3]
    assert Uniform("paper").layer_totals(Plan(11, (2, 2, 2), 9, 0)) == [2, 2, 2]
    assert head_slots(Uniform("paper"), torch.zeros(3, 9), 11).tolist() == [3, 3, 3]


def test_layers_of_different_width_get_the_same_mean_per_head() -> None:
    assert Uniform().layer_totals(Plan(140, (8, 2, 4), 50, 8)) == [80, 20, 40]


def test_pyramid_schedule_by_hand() -> None:
    # b = 120, β = 20: lo = 6, hi = 234
    levels = pyramid(120, 10_000, 32, 20)
    assert levels[0] == 234
    assert levels[-1] == pytest.approx(6)
    assert sum(levels) == pytest.approx(32 * 120)
    # hi ≥ N - w: hi = N - w, lo = 2b - hi
    assert pyramid(120, 200, 5, 20) == pytest.approx([200, 160, 120, 80, 40])
    assert pyramid(120, 120, 3, 20) == [120, 120, 120]


def test_pyramid_totals_by_hand() -> None:
    totals = Pyramid().layer_totals(Plan(128 * 8 * 32, (8,) * 32, 10_000, 8))
    assert sum(totals) == 128 * 8 * 32
    assert totals[0] == 8 * (234 + 8)
    assert totals[-1] == 8 * (6 + 8)
    assert totals == sorted(totals, reverse=True)
    # nothing to choose: uniform
    assert Pyramid().layer_totals(Plan(50, (2,), 100, 8)) == [50]


def test_pyramid_as_published_drifts() -> None:
    levels = pyramid_as_published(120, 10_000, 32, 20)
    assert levels == [234 - 7 * layer for layer in range(32)]
    totals = Pyramid(rounding="paper").layer_totals(Plan(128 * 32, (1,) * 32, 10_000, 8))
    assert totals == [level + 8 for level in levels]
    assert sum(totals) - 128 * 32 == 176
    # the authors' code: a prompt shorter than 2b gets uniform layers
    assert Pyramid(rounding="paper").layer_totals(Plan(128 * 32, (1,) * 32, 239, 8)) == [128] * 32


def test_ada_as_published_by_hand() -> None:
    # b = 10, f = 0.25: floor int(2.5) = 2; of the 20 best, 17 and 3: round(14.75), round(4.25) = 15, 4
    scores = torch.zeros(2, 40)
    scores[0, :17], scores[1, :3] = 2, 1
    slots = head_slots(Ada(floor=0.25, rounding="paper"), scores, 20)
    assert slots.tolist() == [15, 4]
    assert head_slots(Ada(floor=0.25), scores, 20).tolist() == [15, 5]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Uniform("nearest"),  # type: ignore[arg-type]
        lambda: Pyramid(beta=0.5),
        lambda: Pyramid(beta="steep"),  # type: ignore[arg-type]
        lambda: Ada(floor=1.1),
        lambda: Ada(rounding="floor"),  # type: ignore[arg-type]
    ],
)
def test_wrong_parameters_are_refused(wrong: object) -> None:
    with pytest.raises(MethodError, match="must be"):
        wrong()  # type: ignore[operator]
