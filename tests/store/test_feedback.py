"""Keys rounded so that errors make up for each other where queries look, against the definition in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import winnow
from support.dense_attention import DTYPES
from support.feedback_oracle import assert_rounded_for_queries
from support.packed_slots import WINDOW, layer_of, packed_in, selected, slots_of
from support.stores import plain_bits, scores_of
from winnow.errors import MethodError, ModelError
from winnow.kernels import PackedBlock
from winnow.select import Selection
from winnow.store import Bits, Earlier, MixedBits, Packed, Think
from winnow.store.feedback import feedback
from winnow.view import LayerView

pytestmark = pytest.mark.usefixtures("one_thread")


def assert_packed(store: Packed, view: LayerView, selection: Selection) -> None:
    assert_rounded_for_queries(store.pack(view, selection, WINDOW), store, view, selection)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"rotate": True}, {"rotate": True, "center": True, "smooth": True}])
@pytest.mark.parametrize(("dim", "group"), [(20, 0), (40, 0), (72, 32)])
@pytest.mark.parametrize("scales", ["symmetric", "signed"])
def test_channels_make_up_for_the_errors_before_them(
    scales: Any, dim: int, group: int, options: dict[str, Any], dtype: torch.dtype
) -> None:
    view = layer_of(dim, 24, dtype=dtype, seed=dim)
    store = Packed(precision=plain_bits(high=4, group=group, round="queries", scales=scales, **options))
    assert_packed(store, view, selected([9, 24], 24))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=3).filter(any),
    st.integers(1, 24),
    st.sampled_from([8, 6, 4, 3, 2]),
    st.integers(1, 3),
)
def test_of_any_heads_bits_and_lengths(counts: list[int], dim: int, bits: Any, group: int) -> None:
    view = layer_of(dim, 8, length=12, heads=len(counts), group=group, seed=dim)
    assert_packed(Packed(precision=plain_bits(high=bits, round="queries")), view, selected(counts, 12))


def test_heads_of_different_bits() -> None:
    view, scores = layer_of(20, heads=3), scores_of([[0.3, 0.9, 0.2]])
    for precision in (
        Bits(high=8, low=3, round="queries", scores=scores),
        MixedBits(mean=5, round="queries", scores=scores),
    ):
        assert_packed(Packed(precision=precision), view, selected([9, 24, 12], 24))


def test_is_worked_out_once_for_heads_of_different_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(*arguments: Any) -> Any:
        calls.append(len(arguments))
        return feedback(*arguments)

    monkeypatch.setattr("winnow.store.packed.feedback", counted)
    view, scores = layer_of(20, heads=3), scores_of([[0.3, 0.9, 0.2]])
    precision = MixedBits(mean=5, round="queries", scores=scores)
    assert len(precision.bits(0, 3).unique()) > 1
    Packed(precision=precision).pack(view, selected([9, 24, 12], 24), WINDOW)
    assert len(calls) == 1


def test_what_queries_see_of_the_error_falls() -> None:
    """By more than half where queries look at few directions, as those of models do."""
    view, selection = layer_of(64, 24, length=80, group=3), selected([80, 50], 80)
    few = torch.randn(2, 1, 8, 64, generator=torch.Generator().manual_seed(0))
    view = view._replace(queries=(view.queries[..., :8].unflatten(0, (2, 3)) @ few).flatten(0, 1))
    queries = view.queries.reshape(2, -1, 64).double().numpy()

    def error(how: Any) -> float:
        block = Packed(precision=Bits(high=4, round=how)).pack(view, selection, WINDOW)
        slots = slots_of(block, view, selection, WINDOW)
        return sum(float(((queries[slot.head] @ (slot.found_key - slot.key)) ** 2).mean()) for slot in slots)

    assert error("queries") < 0.5 * error("nearest")


def test_bytes_and_values_are_those_of_the_nearest() -> None:
    view, selection = layer_of(40, 24), selected([9, 24], 24)
    fed, nearest = (
        packed_in(Packed(precision=Bits(high=4, round=how)).pack(view, selection, WINDOW))
        for how in ("queries", "nearest")
    )
    assert fed.bytes() == nearest.bytes()
    assert torch.equal(fed.values.entries.data, nearest.values.entries.data)
    assert fed.keys.entries.scales is not None
    assert nearest.keys.entries.scales is not None
    assert torch.equal(fed.keys.entries.scales, nearest.keys.entries.scales)
    assert not torch.equal(fed.keys.entries.data, nearest.keys.entries.data)


@pytest.mark.parametrize("queries", [0.0, 1e30])
def test_queries_of_any_size(queries: float) -> None:
    """Numbers are rounded to the nearest where queries look nowhere."""
    view, selection = layer_of(20), selected([9, 24], 24)
    view = view._replace(queries=view.queries * queries)
    fed = packed_in(Packed(precision=plain_bits(high=4, round="queries")).pack(view, selection, WINDOW))
    assert bool(fed.recover(torch.arange(33))[0].isfinite().all())
    if not queries:
        nearest = packed_in(Packed(precision=plain_bits(high=4)).pack(view, selection, WINDOW))
        assert torch.equal(fed.keys.entries.data, nearest.keys.entries.data)


@pytest.mark.parametrize("precision", [Bits(high=4, round="queries"), Bits(high=4, scales="signed")], ids=str)
def test_slots_written_before_stay_as_they_are(precision: Bits) -> None:
    view, selection = layer_of(40, 24), selected([24, 24], 24)
    store = Packed(precision=precision)
    block = packed_in(store.pack(view, selection, WINDOW))
    slots = torch.arange(48).view(2, 24)
    slots[:, 10] = -1
    later = store.pack(layer_of(40, 24, seed=9), selection, WINDOW, Earlier(block, slots))
    assert isinstance(later, PackedBlock)
    same = (later.keys.entries.data == block.keys.entries.data).all(1)
    assert same.tolist() == [position != 10 for position in range(24)] * 2


def test_16_bits_are_left_alone() -> None:
    view, selection = layer_of(20), selected([9, 24], 24)
    block = packed_in(Packed(precision=Bits(high=16, v=4, round="queries")).pack(view, selection, WINDOW))
    assert torch.equal(block.keys.entries.data[9:], view.keys[1])


def test_the_last_queries_are_asked_for() -> None:
    store = Packed(precision=Bits(high=4, round="queries"))
    assert (store.queries_needed(100), store.queries_needed(1000)) == (100, 256)
    assert Packed(precision=Bits(high=4)).queries_needed(1000) == 0


def test_queries_that_cannot_serve_are_named() -> None:
    view, selection = layer_of(20), selected([9, 24], 24)
    store = Packed(precision=Bits(high=4, round="queries"))
    with pytest.raises(ModelError, match="queries of layer 0 contain infinities"):
        store.pack(view._replace(queries=view.queries * torch.inf), selection, WINDOW)
    with pytest.raises(ModelError, match="leave round=queries out"):
        store.pack(view._replace(queries=view.queries[..., :7]), selection, WINDOW)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("full+spark+bits(4, round=queries)", "needs all channels of a key"),
        ("full+think+bits(4, round=queries)", "the part that drops channels"),
        ("full+bits(4, round=up)", "round must be one of 'nearest', 'queries'"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, word: str) -> None:
    with pytest.raises(MethodError, match=word):
        winnow.method(name)


def test_names_read_back() -> None:
    made = winnow.method("full+bits(4, round=queries)")
    assert winnow.method(str(made)) == made


def test_queries_that_rounding_looks_at_are_asked_for() -> None:
    how = Packed(precision=Bits(4, round="queries"))
    assert [how.queries_needed(length) for length in (10, 256, 1000)] == [10, 256, 256]
    assert Packed(precision=Bits(4)).queries_needed(1000) == 0
    assert Packed(Think(queries=40)).queries_needed(1000) == 40
