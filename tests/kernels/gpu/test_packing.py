"""Integers that Triton packs against those of formats and stores, to the bit, under the interpreter or on a GPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import winnow
from support.gpu import DEVICE
from support.views import random_view
from winnow.errors import ModelError
from winnow.kernels.formats import Block, PackedBlock, parts_of
from winnow.kernels.formats.entries import Entries, grouped_by_channels, grouped_by_slots, symmetric, symmetric_groups
from winnow.kernels.formats.hadamard import hadamard
from winnow.kernels.formats.serialize import on_device
from winnow.kernels.formats.signed import signed
from winnow.kernels.gpu.gathering import Chosen, Coordinates
from winnow.kernels.gpu.packing import packed, ranged
from winnow.kernels.rotating import centered_rows, smoothed_rows
from winnow.select import select
from winnow.store import packed as store
from winnow.view import LayerView

pytestmark = pytest.mark.usefixtures("one_thread")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def by_definition(chosen: Chosen, how: Coordinates, bits: int, group: int, of_either_sign: bool) -> Entries:
    dtype = chosen.rows.dtype
    rows = chosen.rows[chosen.head, chosen.token].float()
    rows = rows if how.means is None else centered_rows(rows, how.means, chosen.head)
    rows = rows if how.spreads is None else smoothed_rows(rows, how.spreads, chosen.head)
    rows = hadamard(rows) if how.rotated else rows
    if dtype == torch.float16:
        rows = rows.clamp(-65504, 65504)
    if of_either_sign:
        return signed(rows, bits, dtype, group)
    return symmetric_groups(rows, bits, dtype, group) if group else symmetric(rows, bits, dtype)


def same_entries(expected: Entries, found: Entries) -> None:
    assert (found.bits, found.group) == (expected.bits, expected.group)
    for name in ("data", "scales", "zeros"):
        wanted, there = getattr(expected, name), getattr(found, name)
        assert (wanted is None) == (there is None)
        assert wanted is None or torch.equal(there.cpu(), wanted)


@settings(max_examples=10, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    dim=st.sampled_from([64, 128, 192, 80, 96, 40, 24, 33]),
    bits=st.sampled_from([8, 6, 4, 3, 2]),
    group=st.sampled_from([0, 32, 64]),
    of_either_sign=st.booleans(),
    steps=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    slots=st.integers(0, 20),
    seed=st.integers(0, 99),
)
def test_every_form_is_packed_to_the_bit(
    dtype: torch.dtype,
    dim: int,
    bits: int,
    group: int,
    of_either_sign: bool,
    steps: tuple[bool, bool, bool],
    slots: int,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = (torch.randn(2, 30, dim, generator=generator) * 3).to(dtype)
    rows[0, 1], rows[1, 2, 5] = 0, 60000
    rows[0, 4, :2] = torch.tensor([50, -50])  # of two as large, the one below zero counts
    if dtype != torch.bfloat16:  # of which the interpreter gets the smallest numbers wrong
        rows[1, 3] = torch.finfo(dtype).tiny / 2
    head = torch.randint(2, (slots,), generator=generator).sort().values
    token = torch.randint(30, (slots,), generator=generator)
    means = rows.float().mean(1).to(dtype) if steps[0] else None
    spreads = rows.float().std(1).sqrt().to(dtype) if steps[1] else None
    how = Coordinates(means, spreads, steps[2])
    expected = by_definition(Chosen(rows, head, token), how, bits, group, of_either_sign)
    there = Coordinates(*(None if each is None else each.to(DEVICE) for each in how[:2]), steps[2])
    chosen = Chosen(rows.to(DEVICE), head.to(DEVICE), token.to(DEVICE))
    found = packed(chosen, there, bits, group, of_either_sign)
    same_entries(expected, found)


@settings(max_examples=12, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    dim=st.sampled_from([64, 128, 80, 96, 40, 24, 33]),
    bits=st.sampled_from([8, 6, 4, 3, 2]),
    by_slots=st.booleans(),
    rotated=st.booleans(),
    groups=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_ranges_are_packed_to_the_bit(
    dtype: torch.dtype, dim: int, bits: int, by_slots: bool, rotated: bool, groups: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = (torch.randn(2, 40, dim, generator=generator) * 3 + 1).to(dtype)
    rows[:, :, 0], rows[0, 1], rows[1, 2, 5] = 7, 2, 60000  # a constant channel, a constant slot, an outlier
    slots = 32 * groups + (0 if by_slots else 5)
    head = torch.randint(2, (slots,), generator=generator).sort().values
    token = torch.randint(40, (slots,), generator=generator)
    numbers = rows[head, token].float()
    numbers = hadamard(numbers) if rotated else numbers
    numbers = numbers.clamp(-65504, 65504) if dtype == torch.float16 else numbers
    expected = (grouped_by_slots if by_slots else grouped_by_channels)(numbers, bits, dtype)
    chosen = Chosen(rows.to(DEVICE), head.to(DEVICE), token.to(DEVICE))
    found = ranged(chosen, Coordinates(None, None, rotated), bits, by_slots)
    same_entries(expected, found)


@pytest.mark.parametrize(
    "name", ["bits(4)", "bits(k=8, v=3)", "bits(k=16, v=2)", "bits(6, group=32)", "kivi(4)", "kivi(3, rotate=true)"]
)
def test_a_store_packs_the_same_on_a_gpu(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    view = random_view(length=90, dim=80, dtype=torch.bfloat16)
    expected = packed_by(name, view)
    monkeypatch.setattr(store.gpu, "packs", lambda *sides: True)
    found = packed_by(name, view._replace(keys=view.keys.to(DEVICE), values=view.values.to(DEVICE)))
    for here, there in zip(parts_of(expected), parts_of(on_device(found, torch.device("cpu"))), strict=True):
        if isinstance(here, PackedBlock):
            assert isinstance(there, PackedBlock)
            same_entries(here.keys.entries, there.keys.entries)
            same_entries(here.values.entries, there.values.entries)
        else:  # slots that fill no group
            assert all(torch.equal(getattr(here, side), getattr(there, side)) for side in ("keys", "values"))


@pytest.mark.parametrize("name", ["bits(4, rotate=False, center=False, smooth=False)", "kivi(2)"])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_refused(monkeypatch: pytest.MonkeyPatch, wrong: float, name: str) -> None:
    view = random_view(length=90, dim=64, dtype=torch.float16)
    view.keys[1, :, 3] = wrong
    there = {side: getattr(view, side).to(DEVICE) for side in ("queries", "keys", "values")}
    monkeypatch.setattr(store.gpu, "packs", lambda *sides: True)
    with pytest.raises(ModelError, match="keys of layer 0 contain infinities or NaN"):
        packed_by(name, view._replace(**there))


def packed_by(name: str, view: LayerView) -> Block:
    """Blocks of a store, of ragged heads."""
    generator = torch.Generator().manual_seed(0)
    selection = select(torch.rand(2, 90, generator=generator), torch.tensor([12, 72]))
    return winnow.method(f"snapkv+{name}", budget=20).store.pack(view, selection, window=8)
