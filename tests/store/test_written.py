"""Slots that an earlier block holds are taken over as they are written, whatever is packed beside them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from support.dense_attention import DTYPES
from support.later_slots import later
from support.packed_slots import WINDOW, layer_of, selected
from support.stores import ALL, STORES
from winnow.kernels import Block, PackedBlock, parts_of
from winnow.kernels.formats.schema import check_content
from winnow.select import Selection, everything
from winnow.store import Bits, Dense, Earlier, Kivi, Packed, Spark, SparkP, Store, Think
from winnow.store.written import _are_whole

pytestmark = pytest.mark.usefixtures("one_thread")
SEPARABLE = {name: store for name, store in (STORES | ALL).items() if store.separable}
COUNTS = [60, 41, 5, 0]
LENGTH = 60


def assert_recovers_alike(found: Block, places: Tensor, expected: Block, others: Tensor) -> None:
    """Slots of two blocks are taken for the same keys and values, to the bit."""
    for one, other in zip(found.recover(places), expected.recover(others), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SEPARABLE)
def test_what_is_written_once_stays_as_it_is(name: str, dtype: torch.dtype) -> None:
    store = SEPARABLE[name]
    view, selection = layer_of(40, 24, LENGTH, heads=4, dtype=dtype), selected(COUNTS, LENGTH)
    block = store.pack(view, selection, WINDOW)
    for seed in range(3):
        now = later(block, view, seed)
        packed = store.pack(now.view, now.selection, WINDOW, now.earlier)
        for part in parts_of(packed):
            if isinstance(part, PackedBlock):
                check_content(part.rules())
        assert torch.equal(packed.offsets, now.selection.offsets)
        old = (now.from_slots >= 0).nonzero().flatten()
        assert len(old) > 30
        assert_recovers_alike(packed, old, block, now.from_slots[old])
        assert store.bytes(now.view, now.selection, WINDOW, now.earlier) == sum(packed.bytes().values()) + 4 * len(
            now.selection.positions
        )


@pytest.mark.parametrize("name", SEPARABLE)
def test_new_slots_are_written_as_if_nothing_was_there(name: str) -> None:
    store = SEPARABLE[name]
    view, selection = layer_of(40, 24, LENGTH, heads=4), selected(COUNTS, LENGTH)
    block = store.pack(view, selection, WINDOW)
    now = later(block, view, 1)
    new = now.from_slots < 0
    bounds = [int(new[start:stop].sum()) for start, stop in pairwise(now.selection.offsets.tolist())]
    alone = Selection(now.selection.positions[new], torch.tensor([0, *bounds]).cumsum(0))
    packed = store.pack(now.view, now.selection, WINDOW, now.earlier)
    expected = store.pack(now.view, alone, WINDOW, now.earlier)
    assert_recovers_alike(packed, new.nonzero().flatten(), expected, torch.arange(len(alone.positions)))


@pytest.mark.parametrize("split", [1, 7])
@pytest.mark.parametrize("store", [Packed(Spark(values=0.5), Bits(high=2)), Packed(SparkP(share=0.9), Bits(high=4))])
def test_pieces_and_what_is_taken_over_keep_their_order(
    store: Store, split: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, selection = layer_of(40, 24, LENGTH, heads=4), selected(COUNTS, LENGTH)
    now = later(store.pack(view, selection, WINDOW), view, 2)
    whole = store.pack(now.view, now.selection, WINDOW, now.earlier)
    monkeypatch.setattr("winnow.store.packed._AT_ONCE", split)
    slots = torch.arange(len(now.selection.positions))
    assert_recovers_alike(store.pack(now.view, now.selection, WINDOW, now.earlier), slots, whole, slots)


def test_a_block_holds_constants_of_its_own() -> None:
    """Memory of two prefixes is that of both, whoever is freed first."""
    for store in (Packed(Spark(recent="pruned")), Packed(ALL["think and 8 bits"].channels)):
        view, selection = layer_of(40, 24, LENGTH, heads=4), selected(COUNTS, LENGTH)
        block = store.pack(view, selection, WINDOW)
        now = later(block, view, 3)
        again: Any = parts_of(store.pack(now.view, now.selection, WINDOW, now.earlier))[0]
        first: Any = parts_of(block)[0]
        mine = again.keys.channels if again.keys.pruned is None else again.keys.pruned.inverse_norms
        theirs = first.keys.channels if first.keys.pruned is None else first.keys.pruned.inverse_norms
        assert torch.equal(mine, theirs)
        assert mine.data_ptr() != theirs.data_ptr()


def test_groups_cannot_be_taken_over() -> None:
    for name, store in ALL.items():
        assert store.separable == ("kivi" not in name)
        assert store.appendable
        assert store.reads_written == ("segments" in name)
    assert Dense().separable
    assert Dense().appendable


@pytest.mark.parametrize("store", [Packed(precision=Kivi(2)), Packed(Think(0.4), Kivi(4, residual=7))])
@pytest.mark.parametrize("gone", [[], [3]])
def test_whole_groups_are_taken_over_where_all_of_them_stay(store: Packed, gone: list[int]) -> None:
    """They are read from the block: where one slot is gone, what the view shows is packed anew."""
    view = layer_of(40, 24, 130, heads=2)
    first = view._replace(keys=view.keys[:, :80], values=view.values[:, :80])
    block = store.pack(first, everything(first.keys), 0)
    slots = torch.arange(160).view(2, 80)
    held = (80 - store.residual) // 32 * 32
    now = view._replace(keys=view.keys.clone(), values=view.values.clone())
    now.keys[:, :held], now.values[:, :held] = 1.0, 1.0
    stays = torch.tensor([[column not in gone for column in range(130)]] * 2)
    offsets = torch.tensor([0, *stays.sum(1).cumsum(0).tolist()])
    selection = Selection(stays.nonzero()[:, 1], offsets)
    packed = store.pack(now, selection, 0, Earlier(block, slots))
    for part in parts_of(packed):
        if isinstance(part, PackedBlock):
            check_content(part.rules())
    old = torch.tensor([[*range(held - len(gone))], [*range(130 - len(gone), 130 - len(gone) + held - len(gone))]])
    if gone:
        torch.testing.assert_close(packed.recover(old)[1], torch.ones(2, held - 1, 24), atol=1e-6, rtol=0)
        return
    assert_recovers_alike(packed, old, block, torch.tensor([[*range(held)], [*range(80, 80 + held)]]))
    # Groups that came behind them are those of the same tokens in a prompt of all.
    rest = view._replace(keys=view.keys[:, held:], values=view.values[:, held:])
    expected = store.pack(rest, everything(rest.keys), 0, Earlier(block, torch.full((2, 1), -1)))
    later_slots = torch.stack([torch.arange(held, 130), torch.arange(130 + held, 260)])
    assert_recovers_alike(packed, later_slots, expected, torch.arange(2 * (130 - held)).view(2, -1))


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (Spark(recovery="gaussian-printed"), Spark(recovery="gaussian")),
        (Spark(recovery="exponential-printed", seed=3), Spark(recovery="exponential")),
        (Spark(recovery="constant", fill=0.5), Spark(recovery="constant")),
        (Spark(recovery="none", sign="none"), Spark(sign="none")),
    ],
)
def test_what_was_written_in_an_older_way_goes_on_in_it(before: Spark, now: Spark) -> None:
    """A context that is older than a rule: one block has one recovery, that of what it holds."""
    view, selection = layer_of(40, 24, LENGTH, heads=4), selected(COUNTS, LENGTH)
    block = Packed(before).pack(view, selection, WINDOW)
    after = later(block, view, seed=1)
    found = Packed(now).pack(after.view, after.selection, WINDOW, after.earlier)
    held = (after.from_slots >= 0).nonzero()[:, 0]
    assert_recovers_alike(found, held, block, after.from_slots[held])


def test_channels_of_new_slots_are_chosen_by_norms_where_none_were_written() -> None:
    """Pruned entries of a constant size need signs alone, and a block holds no norms."""
    store = Packed(Spark(recovery="constant", fill=0.5))
    view, selection = layer_of(40, 24, LENGTH, heads=4), selected(COUNTS, LENGTH)
    now = later(store.pack(view, selection, WINDOW), view, 1)
    new = (now.from_slots < 0).nonzero().flatten()
    counts = [int(((start <= new) & (new < stop)).sum()) for start, stop in pairwise(now.selection.offsets.tolist())]
    alone = Selection(now.selection.positions[new], torch.tensor([0, *counts]).cumsum(0))
    behind, apart = (store.pack(now.view, alone, WINDOW, earlier) for earlier in (now.earlier, None))
    assert_recovers_alike(behind, torch.arange(len(new)), apart, torch.arange(len(new)))


def test_slots_of_other_bits_are_written_anew() -> None:
    view, selection = layer_of(40, 24, LENGTH, heads=4), selected(COUNTS, LENGTH)
    now = later(Packed(precision=Bits(k=8, v=4)).pack(view, selection, WINDOW), view, 1)
    store = Packed(precision=Bits(k=8, v=8))
    blocks = [store.pack(now.view, now.selection, WINDOW, earlier) for earlier in (now.earlier, None)]
    found, expected = (block.recover(torch.arange(len(now.selection.positions)))[1] for block in blocks)
    assert torch.equal(found, expected)


def test_groups_that_are_taken_over_have_channels_of_their_own() -> None:
    store, view = Packed(Think(0.4), Kivi(4)), layer_of(40, 24, 96, heads=2)
    first: Any = store.pack(view, everything(view.keys), 0)
    again: Any = store.pack(view, everything(view.keys), 0, Earlier(first, torch.arange(192).view(2, 96)))
    assert torch.equal(again.keys.channels, first.keys.channels)
    assert again.keys.channels.data_ptr() != first.keys.channels.data_ptr()


def test_groups_are_taken_over_whole_and_in_order() -> None:
    whole = torch.arange(12)
    assert _are_whole(whole, 4)
    assert _are_whole(whole.view(3, 4)[[2, 0, 1]].flatten(), 4)
    assert _are_whole(torch.cat([whole[4:8], torch.full((4,), -1)]), 4)
    assert not _are_whole(whole[[0, 1, 3, 2]], 4)
    assert not _are_whole(whole[[0, 1, 2, 7]], 4)
    assert not _are_whole(whole[2:10], 4)
    assert not _are_whole(torch.tensor([0, 1, 2, -1]), 4)
    assert not _are_whole(torch.tensor([-1, 1, 2, 3]), 4)
