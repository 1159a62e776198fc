"""The worth of slots, in float64 with loops from the paper's definitions; budgets of least loss by brute force."""

from __future__ import annotations

import math
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import winnow
from support.families import build, prompt
from support.views import random_view
from winnow.errors import MethodError
from winnow.estimate.curves import run
from winnow.estimate.curves.profile import convex_gains, least_loss, profile
from winnow.estimate.curves.run import Asked, CurvePlan, CurveRecord, mean_ratios, run_curves
from winnow.estimate.curves.utility import context_of, gains, oracle_importance
from winnow.estimate.errors import JournalError
from winnow.estimate.journal import Journal
from winnow.estimate.shape import table_shape
from winnow.models import load_model, open_model
from winnow.score import SnapKV
from winnow.view import LayerView


def importance_by_definition(view: LayerView, future: int) -> Tensor:
    """I_j = max over later queries and the group's heads of ‖A_j·v_j·W_O‖₂"""
    heads, total, dim = view.keys.shape
    group, length = view.queries.shape[0] // heads, total - future
    found = torch.zeros(heads, length, dtype=torch.float64)
    for query_head, step in product(range(view.queries.shape[0]), range(future)):
        head, position = query_head // group, length + step
        logits = view.keys[head, : position + 1].double() @ view.queries[query_head, position].double()
        attention = (logits * dim**-0.5).softmax(0)
        for token in range(length):
            output = view.values[head, token].double() @ view.output_projection[query_head].double()
            found[head, token] = max(float(found[head, token]), float((attention[token] * output).norm()))
    return found


@pytest.mark.parametrize("future", [1, 5])
def test_importance_is_the_largest_contribution_to_what_comes_after(future: int) -> None:
    for seed in range(2):
        view = random_view(heads=2, group=2, length=20, dim=4, seed=seed)
        torch.testing.assert_close(
            oracle_importance(view, future).double(), importance_by_definition(view, future), atol=1e-5, rtol=1e-4
        )


def test_a_view_without_its_projection_is_refused() -> None:
    with pytest.raises(MethodError, match="output projection"):
        oracle_importance(random_view()._replace(output_projection=None), 3)


@pytest.mark.parametrize("name", ["snapkv", "keydiff", "tova", "h2o", "random"])
def test_a_context_is_scored_as_if_nothing_came_after_it(name: str) -> None:
    model = build("llama")
    model.set_attn_implementation("winnow")
    scorer, ids = winnow.method(name, "50%").scorer, prompt(length=40)

    class Seen:
        queries = 1 << 20

        def __init__(self) -> None:
            self.views: list[LayerView] = []

        def see(self, view, prefix) -> None:
            self.views.append(view)

    whole, alone = Seen(), Seen()
    winnow.compress(model, ids, "full", observer=whole)
    winnow.compress(model, ids[:, :31], "full", observer=alone)
    for long, short in zip(whole.views, alone.views, strict=True):
        expected = scorer.rank(context_of(short, 0, scorer)).scores
        torch.testing.assert_close(scorer.rank(context_of(long, 9, scorer)).scores, expected)


def test_gains_are_in_the_order_in_which_a_head_keeps_tokens() -> None:
    view, scorer = random_view(length=40), SnapKV(window=4)
    found, importance = gains(view, 6, scorer), oracle_importance(view, 6)
    scores = scorer(context_of(view, 6, scorer))
    for head in range(2):
        order = sorted(range(34), key=lambda token, head=head: (-float(scores[head, token]), token))
        expected = [math.inf] * 4 + [float(importance[head, token]) for token in order[4:]]
        assert found[head].tolist() == expected


def least_concave_above(gains: list[float]) -> list[float]:
    """Steps of the least concave curve above the running sums, from all chords."""
    sums = [0.0]
    for gain in gains:
        sums.append(sums[-1] + gain)
    points = range(len(sums))
    above = [
        max(
            [sums[i]] + [sums[a] + (sums[b] - sums[a]) * (i - a) / (b - a) for a in points for b in points if a < i < b]
        )
        for i in points
    ]
    return [above[i + 1] - above[i] for i in range(len(gains))]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(0, 10), min_size=1, max_size=14), st.integers(0, 3))
def test_convex_losses_are_the_hull_of_the_losses(found: list[float], certain: int) -> None:
    given_gains = torch.tensor([[math.inf] * certain + found], dtype=torch.float64)
    fitted = convex_gains(given_gains)[0].tolist()
    assert fitted[:certain] == [math.inf] * certain
    assert fitted[certain:] == pytest.approx(least_concave_above(found), abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 8), st.integers(0, 2))
def test_slots_are_of_least_total_loss(seed: int, length: int, certain: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    layers = [torch.rand(2, length, generator=generator, dtype=torch.float64) for _ in range(2)]
    for layer in layers:
        layer[:, : min(certain, length)] = torch.inf
    convex = [convex_gains(layer) for layer in layers]
    found = least_loss(convex)
    heads = [head for layer in convex for head in layer.tolist()]
    losses = [[sum(g for g in head[kept:] if g < math.inf) for kept in range(length + 1)] for head in heads]

    @cache
    def best(head: int, left: int) -> float:
        if head == len(heads):
            return 0.0 if left == 0 else math.inf
        least = min(certain, length)
        return min(
            (losses[head][kept] + best(head + 1, left - kept) for kept in range(least, min(left, length) + 1)),
            default=math.inf,
        )

    for gone in (10, 40, 50, 75, 99):
        slots = found[gone - 1].flatten().tolist()
        total = max(round(4 * length * (100 - gone) / 100), 4 * min(certain, length))
        assert sum(slots) == total
        assert sum(losses[head][kept] for head, kept in enumerate(slots)) == pytest.approx(best(0, total))


def test_a_profile_has_the_slots_of_every_head() -> None:
    one = torch.tensor([[4.0, 1.0, 0.5, 0.25], [3.0, 2.0, 1.5, 0.0]])
    slots = profile([one])
    assert slots[49, 0].tolist() == [1, 3]  # the best four: 4, 3, 2, 1.5
    assert slots[24, 0].tolist() == [3, 3]  # and 1, 0.5
    assert bool((slots.diff(dim=0) <= 0).all())


def test_layers_that_keep_the_same_divide_it_among_their_heads() -> None:
    strong = torch.tensor([[4.0, 1.0, 0.5, 0.25], [3.0, 2.0, 1.5, 0.0]])
    weak = strong / 10
    assert profile([strong, weak])[49].tolist() == [[3, 3], [1, 1]]
    assert profile([strong, weak], across="layer")[49].tolist() == [[1, 3], [1, 3]]


@pytest.fixture(scope="module")
def bundled():
    source = open_model(winnow.bundled.MODEL_PATH.as_posix())
    model = load_model(source, "cpu", "float32", None)
    model.set_attn_implementation("winnow")
    return model, source.tokenizer


def plan_of(count: int = 2) -> CurvePlan:
    from winnow.estimate.cokv.examples import generated_examples

    asked = tuple(Asked(each.document, each.question) for each in generated_examples(count, 300))
    return CurvePlan(SnapKV(), asked, max_new_tokens=4)


def test_a_run_is_taken_up_where_it_was_interrupted(bundled, tmp_path: Path, monkeypatch) -> None:
    model, tokenizer = bundled
    plan, shape, config = plan_of(), table_shape(model), {"task": "curves"}
    profiled, asked = run.profile_of, []

    def once(model, tokenizer, plan, number, question):
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        return profiled(model, tokenizer, plan, number, question)

    monkeypatch.setattr(run, "profile_of", once)
    journal = Journal.open(tmp_path / "curves.jsonl", config)
    with pytest.raises(KeyboardInterrupt):
        run_curves(model, tokenizer, plan, journal, shape)
    journal.close()
    monkeypatch.setattr(run, "profile_of", profiled)
    told: list[bool] = []
    journal = Journal.open(tmp_path / "curves.jsonl", config)
    resumed = run_curves(model, tokenizer, plan, journal, shape, told.append)
    assert told == [True, False]
    fresh = run_curves(model, tokenizer, plan, Journal.open(tmp_path / "other.jsonl", config), shape)
    assert torch.equal(resumed, fresh)
    assert resumed.shape == (99, shape.layers, shape.heads)
    torch.testing.assert_close(
        resumed.mean(dim=(1, 2))[:90], torch.arange(1, 91, dtype=torch.float64) / 100, atol=0.02, rtol=0
    )
    with pytest.raises(JournalError):
        run_curves(model, tokenizer, plan_of(1), journal, shape)


def test_a_scorer_that_follows_earlier_layers_is_refused() -> None:
    with pytest.raises(MethodError, match="earlier ones kept"):
        CurvePlan(winnow.method("kvec", 64).scorer, ())


def test_every_question_has_a_share_of_its_own_context() -> None:
    """Contexts of 10 and of 40 tokens, of which half and a quarter are kept: three eighths, whatever comes first."""
    records = [CurveRecord(0, 10, [[[5]]]), CurveRecord(1, 40, [[[10]]])]
    for order in (records, records[::-1]):
        assert mean_ratios(order).item() == 1 - (0.5 + 0.25) / 2
