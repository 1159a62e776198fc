"""Any choice of channels in any precision: blocks, their order, and attention over them."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from support.packed_slots import WINDOW, assert_same_tensors, layer_of, selected, slots_of
from support.quantizers import assert_symmetric
from support.stores import ALL, STORES, plain_bits, scores_of
from winnow.errors import MethodError
from winnow.kernels import AttentionSpec, DenseBlock, Parts, TailSegments, attend
from winnow.kernels.reference import ReferencePlan
from winnow.store import Dense, Kivi, Packed, Spark, SparkG, SparkP, Think

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("split", [32, 64])
@pytest.mark.parametrize(
    "store", [Packed(Spark(values=0.5), plain_bits(high=4)), Packed(SparkP(share=0.9)), Packed(Think(), Kivi())]
)
def test_slots_packed_in_pieces_are_the_same(store: Packed, split: int, monkeypatch: pytest.MonkeyPatch) -> None:
    view, selection = layer_of(40, 24, length=100), selected([90, 71], 100)
    whole = store.pack(view, selection, WINDOW)
    monkeypatch.setattr("winnow.store.packed._AT_ONCE", split)
    assert_same_tensors(store.pack(view, selection, WINDOW), whole)


def test_statistics_of_slots_that_are_summed_in_pieces_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Packed(precision=plain_bits(high=4, center=True, smooth=True))
    view, selection = layer_of(40, 24, length=100), selected([90, 71], 100)
    whole = store.pack(view, selection, WINDOW)
    monkeypatch.setattr("winnow.store.key_statistics._AT_ONCE", 64)
    assert_same_tensors(store.pack(view, selection, WINDOW), whole)


@pytest.mark.parametrize("dims", [(20, 20), (40, 24), (128, 96)])
@pytest.mark.parametrize("name", STORES)
def test_attention_over_a_packed_block_is_attention_over_what_it_recovers_to(name: str, dims: tuple[int, int]) -> None:
    view = layer_of(*dims, length=90, heads=4, seed=2)
    selection = selected([60, 0, 1, 85], 90, 5)
    block = STORES[name].pack(view, selection, 5)
    generator = torch.Generator().manual_seed(4)
    query = torch.randn(1, 8, 2, dims[0], generator=generator)
    tail = TailSegments(
        torch.randn(1, 4, 5, dims[0], generator=generator),
        torch.randn(1, 4, 5, dims[1], generator=generator),
        torch.tensor([3]),
    )
    spec = AttentionSpec(view.scaling)
    keys, values = (each.double() for each in block.recover(torch.arange(int(block.offsets[-1]))))
    expected = torch.zeros(1, 2, 8, dims[1], dtype=torch.float64)
    for head, step in product(range(8), range(2)):
        own = slice(*block.offsets[head // 2 : head // 2 + 2].tolist())
        seen = 2 + step
        k = torch.cat([keys[own], tail.keys[0, head // 2, :seen].double()])
        v = torch.cat([values[own], tail.values[0, head // 2, :seen].double()])
        expected[0, step, head] = (k @ query[0, head, step].double() * spec.scaling).softmax(0) @ v
    for found in (attend(query, [block], tail, spec), ReferencePlan([block], tail, spec).run(query)):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_heads_of_different_bits_lie_in_blocks_of_their_own() -> None:
    scores = scores_of([[0.1, 0.9, 0.2], [0.8, 0.7, 0.3]])
    view, selection = layer_of(40, heads=3, layer=0), selected([9, 24, 13], 24)
    for layer, widths in ((0, [4, 8, 4]), (1, [8, 8, 4])):
        block = Packed(precision=plain_bits(high=8, low=4, scores=scores)).pack(
            view._replace(layer=layer), selection, WINDOW
        )
        assert isinstance(block, Parts)
        for slot in slots_of(block, view, selection, WINDOW):
            assert_symmetric(slot.key, slot.found_key, widths[slot.head], torch.float32)
            assert_symmetric(slot.value, slot.found_value, widths[slot.head], torch.float32)


def test_kivi_is_refused_after_spark() -> None:
    for how in (Spark(), SparkP(), SparkG()):
        with pytest.raises(MethodError, match="combine spark with bits, or kivi with think"):
            Packed(how, Kivi())


def test_packed_slots_share_no_memory_with_the_layer() -> None:
    view, selection = layer_of(40, length=70), selected([60, 70], 70)
    for store in (*ALL.values(), Dense()):
        block = store.pack(view, selection, WINDOW)
        before = [each.clone() for each in block.recover(torch.arange(130))]
        view.keys.add_(1)
        view.values.add_(1)
        for found, expected in zip(block.recover(torch.arange(130)), before, strict=True):
            assert torch.equal(found, expected)


def test_a_layer_of_dense_slots_only_is_one_dense_block() -> None:
    view, selection = layer_of(length=20), selected([3, 4], 20)
    assert isinstance(Packed(Spark()).pack(view, selection, WINDOW), DenseBlock)
    assert isinstance(Packed(precision=Kivi()).pack(view, selection, WINDOW), DenseBlock)
