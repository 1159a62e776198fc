"""The path from a layer to a selection under a budget."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.ready import BUDGETED, METHODS, ready
from support.views import one_layer, random_view, shown_to
from winnow.allocate import Ada, Cake
from winnow.budget import Budget
from winnow.bundled import MODEL_PATH
from winnow.composition.method import Method, own_ranking
from winnow.composition.names import method
from winnow.errors import BudgetError, ModelError
from winnow.evaluate.rankings import RememberedRankings
from winnow.heads import HeadScores
from winnow.heads.shipped import shipped_scores
from winnow.score import Ranking, Scorer, SnapKV
from winnow.score.base import refined
from winnow.store import Bits, Cost, Dense, Packed, Think
from winnow.store.precision import ByScores
from winnow.view import LayerView, last_queries

BYTES = (68.0,) * 4
COSTS = tuple(Cost(0, size) for size in BYTES)


@pytest.mark.parametrize("name", BUDGETED)
@pytest.mark.parametrize("length", [1, 8, 9, 40, 150])
@pytest.mark.parametrize("budget", [18, "10%", "9kB"])
def test_selections_hold_the_budget(name: str, length: int, budget: int | str) -> None:
    chosen = ready(name, budget)
    heads = (2, 2, 2, 2)
    allocation = chosen.allocation(length, heads, COSTS)
    guaranteed = min(chosen.scorer.guaranteed, length)
    in_bytes = chosen.budget.unit == "bytes"
    expected = (
        chosen.byte_budget.slots(length, heads, COSTS, guaranteed)
        if in_bytes
        else chosen.budget.slots(length, heads, guaranteed)
    )
    assert sum(allocation.totals) == expected
    for layer, total in enumerate(allocation.totals):
        view = shown_to(chosen.scorer, random_view(length=length, seed=layer, layer=layer))
        positions, offsets = chosen.select(view, allocation)
        assert offsets.tolist()[-1] == len(positions) == total
        for head in range(2):
            kept = positions[offsets[head] : offsets[head + 1]]
            assert kept.unique().tolist() == kept.tolist()
            assert set(range(max(0, length - chosen.scorer.window), length)) <= set(kept.tolist())


@pytest.mark.parametrize("name", BUDGETED)
def test_the_scorer_ranks_a_layer_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ready(name, 24)
    kind, own = type(chosen.scorer), type(chosen.scorer).rank
    rankings: list[Ranking] = []

    def recorded(scorer: Scorer, view: LayerView) -> Ranking:
        rankings.append(own(scorer, view))
        return rankings[-1]

    monkeypatch.setattr(kind, "rank", recorded)
    chosen.select(shown_to(chosen.scorer, random_view(length=60)), chosen.allocation(60, (2, 2, 2, 2), COSTS))
    assert len(rankings) == 1


@dataclass(frozen=True)
class ShownQueries(Scorer):
    """Worth of a key to all the queries that are shown, of which there are to be eight."""

    def queries_needed(self, length: int) -> int:
        return min(8, length)

    def __call__(self, view: LayerView) -> Tensor:
        queries = view.queries.unflatten(0, (len(view.keys), -1)).flatten(1, 2)
        return (queries @ view.keys.mT).mean(dim=1)

    def refine(self, ranking: Ranking, slots: Tensor, view: LayerView) -> Tensor:
        assert view.queries.shape[1] == 0
        return ranking.scores


@pytest.mark.parametrize("remembered", [False, True])
def test_what_others_look_at_does_not_change_what_a_scorer_sees(remembered: bool) -> None:
    """A store that asks for 32 queries, an allocator that asks for 16, in any order over one prefill."""
    view = random_view(length=60)
    methods = [
        method(ShownQueries(), 20),
        method(ShownQueries(), 20, store=Packed(Think())),
        method(ShownQueries(), 20, allocator=Cake(rows=16)),
    ]
    kept = []
    for order in (methods, methods[::-1]):
        rank = RememberedRankings() if remembered else own_ranking
        for chosen in order:
            asked = view._replace(queries=last_queries(view.queries, chosen.queries_needed(60)))
            ranking = rank(chosen.scorer, asked)
            order_of = refined(chosen.scorer, ranking, torch.full((2,), 20), asked)
            kept.append(order_of.topk(20).indices.sort().values.tolist())
    assert all(each == kept[0] for each in kept)
    assert len({chosen.queries_needed(60) for chosen in methods}) == 3


@pytest.mark.parametrize("name", METHODS)
def test_budgets_beyond_the_prompt_keep_everything(name: str) -> None:
    chosen = ready(name, 500)
    allocation = chosen.allocation(30, (2, 2, 2, 2), COSTS)
    assert allocation.totals == (60,) * 4
    positions, offsets = chosen.select(shown_to(chosen.scorer, random_view(length=30)), allocation)
    assert positions.tolist() == [*range(30), *range(30)]
    assert offsets.tolist() == [0, 30, 60]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.sampled_from([17.5, 68.0, 260.0])), min_size=1, max_size=6),
    st.integers(20, 3000),
    st.integers(100_000, 10**7),
    st.sampled_from(["snapkv", "pyramidkv", "ada-pyramidkv"]),
)
def test_bytes_are_kept_even_if_layers_differ(
    layers: list[tuple[int, float]], length: int, amount: int, name: str
) -> None:
    heads, sizes = zip(*layers, strict=True)
    totals = method(name, f"{amount}B").allocation(length, heads, tuple(Cost(0, size) for size in sizes)).totals
    assert sum(total * size for total, size in zip(totals, sizes, strict=True)) <= amount


def test_published_rounding_still_selects_within_the_prompt() -> None:
    chosen = method("ada-pyramidkv", 12, rounding="paper")
    allocation = chosen.allocation(40, (2,) * 4, COSTS)
    for layer in range(4):
        view = shown_to(chosen.scorer, random_view(length=40, layer=layer))
        positions, offsets = chosen.select(view, allocation)
        assert offsets.tolist()[-1] == len(positions)
        assert int(positions.max()) < 40


def test_selection_carries_no_graph_and_refuses_nan() -> None:
    view = random_view(length=50)
    view.keys.requires_grad_()
    chosen = method("adakv", 16)
    assert not chosen.select(view, one_layer(2, 50, 32, 8)).positions.requires_grad
    with torch.no_grad():
        view.keys[0, 3] = torch.nan
    with pytest.raises(ModelError, match="layer 0"):
        chosen.select(view, one_layer(2, 50, 32, 8))


def test_methods_can_be_built_by_hand() -> None:
    made = Method("mine", SnapKV(window=4), Ada(floor=0), Dense(), Budget.parse(20))
    assert str(made) == "mine @ 20"
    with pytest.raises(BudgetError, match="below the 32 tokens that mine"):
        Method("mine", SnapKV(window=32), Ada(), Dense(), Budget.parse(20))


@pytest.mark.parametrize("name", ["headkv-r2", "headkv-er", "cokv", "snapkv+headkv", "snapkv+ada"])
@pytest.mark.parametrize("bits", ["bits(8, 4)", "mixedbits(5)"])
def test_bits_follow_the_scores_that_budgets_follow(name: str, bits: str) -> None:
    generator = torch.Generator().manual_seed(4)
    own = HeadScores(torch.rand(4, 4, generator=generator), "headkv-r")
    chosen = method(f"{name}+{bits}", 64, **({"scores": own} if "headkv" in name and "+" in name else {}))
    served = chosen.for_model(str(MODEL_PATH), (4,) * 4)
    expected = own if "+headkv" in name else shipped_scores(str(MODEL_PATH), "cokv" if "ada" in name else name)
    assert expected is not None
    assert isinstance(served.store, Packed)
    assert isinstance(served.store.precision, ByScores)
    assert served.store.precision.scores == expected
    if served.allocator.head_scores is not None:
        assert served.allocator.head_scores == expected
        high = method("full+bits(8, 4)", scores=expected).for_model(str(MODEL_PATH), (4,) * 4).store
        if bits == "bits(8, 4)":
            assert isinstance(high, Packed)
            found = [served.store.precision.bits(layer, 4).tolist() for layer in range(4)]
            assert found == [high.precision.bits(layer, 4).tolist() for layer in range(4)]


def test_bits_that_have_scores_of_their_own_keep_them() -> None:
    own = HeadScores(torch.arange(1.0, 17).view(4, 4), "other")
    store = Packed(precision=Bits(high=8, low=4, scores=own))
    served = method("headkv-r2", 64)
    served = replace(served, store=store).for_model(str(MODEL_PATH), (4,) * 4)
    assert isinstance(served.store, Packed)
    assert isinstance(served.store.precision, Bits)
    assert served.store.precision.scores == own
