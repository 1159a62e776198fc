"""AdaKV's competition of heads and its formula, by brute force and by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.layers import layers
from support.views import head_slots
from winnow.allocate import Ada
from winnow.allocate.ada import winners_per_head
from winnow.errors import MethodError
from winnow.select import select


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
        lambda: Ada(floor=1.1),
        lambda: Ada(rounding="floor"),  # type: ignore[arg-type]
    ],
)
def test_wrong_parameters_are_refused(wrong: object) -> None:
    with pytest.raises(MethodError, match="must be"):
        wrong()  # type: ignore[operator]
