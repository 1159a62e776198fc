"""Keys that Triton rounds where queries look, against the definition in float64 and what torch makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.feedback_oracle import assert_rounded_for_queries, seen_by
from support.gpu import DEVICE
from support.later_slots import later
from support.packed_slots import WINDOW, layer_of, packed_in, selected
from support.stores import HEAD_SCORES, plain_bits
from winnow.errors import ModelError
from winnow.kernels.formats import Block, PackedBlock
from winnow.kernels.formats.bits import unpack_rows
from winnow.kernels.formats.serialize import on_device
from winnow.kernels.gpu import support
from winnow.select import Selection
from winnow.store import Bits, Earlier, MixedBits, Packed
from winnow.view import LayerView

pytestmark = pytest.mark.usefixtures("one_thread")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CPU = torch.device("cpu")


def packed_by_triton(store: Packed, view: LayerView, selection: Selection, earlier: Earlier | None = None) -> Block:
    """Blocks that a store packs on a GPU, by kernels alone, on the CPU."""
    there = view._replace(**{name: getattr(view, name).to(DEVICE) for name in ("queries", "keys", "values")})
    if earlier:
        earlier = earlier._replace(block=on_device(earlier.block, DEVICE))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(support, "packs", lambda *sides: True)
        patch.delattr(Packed, "_piece")
        return on_device(store.pack(there, selection, WINDOW, earlier), CPU)


@settings(max_examples=8, deadline=None)
# A scale half-way between two numbers of fp16, but for the order of sums.
@example(dtype=torch.float16, dim=6, how=(8, 0, "symmetric"), moved=True, counts=[4, 4, 9])
@given(
    dtype=st.sampled_from(DTYPES),
    dim=st.integers(1, 40),
    how=st.tuples(st.sampled_from([8, 6, 4, 3, 2]), st.sampled_from([0, 32]), st.sampled_from(["symmetric", "signed"])),
    moved=st.booleans(),
    counts=st.lists(st.integers(0, 12), min_size=1, max_size=3).filter(any),
)
def test_channels_make_up_for_the_errors_before_them(
    dtype: torch.dtype, dim: int, how: tuple[Any, int, Any], moved: bool, counts: list[int]
) -> None:
    bits, group, scales = how
    steps = {"rotate": moved, "center": moved, "smooth": moved}
    store = Packed(precision=plain_bits(high=bits, group=group, scales=scales, round="queries", **steps))
    view, selection = layer_of(dim, 8, length=12, heads=len(counts), dtype=dtype, seed=dim), selected(counts, 12)
    assert_rounded_for_queries(packed_by_triton(store, view, selection), store, view, selection)


def test_more_slots_of_a_head_than_a_program_has() -> None:
    store = Packed(precision=MixedBits(mean=5, round="queries", scores=HEAD_SCORES))
    view, selection = layer_of(20, 8, length=70, heads=4, seed=1), selected([70, 0, 33, 1], 70)
    assert_rounded_for_queries(packed_by_triton(store, view, selection), store, view, selection)


@pytest.mark.parametrize("group", [0, 32])
def test_what_queries_see_of_the_error_is_no_more_than_of_torch(group: int) -> None:
    store = Packed(precision=Bits(high=4, group=group, round="queries"))
    view, selection = layer_of(64, 8, length=24, dtype=torch.float16), selected([24, 9], 24)
    found = packed_in(packed_by_triton(store, view, selection))
    expected = packed_in(store.pack(view, selection, WINDOW))
    assert found.keys.entries.scales is not None
    assert expected.keys.entries.scales is not None
    assert torch.equal(found.keys.entries.scales, expected.keys.entries.scales)
    assert torch.equal(found.values.entries.data, expected.values.entries.data)
    assert differing(found, expected) < 0.01
    assert seen_error(found, view, selection) <= 1.001 * seen_error(expected, view, selection)


def test_folds_write_what_is_new() -> None:
    store = Packed(precision=Bits(high=4, round="queries", scales="signed"))
    view, selection = layer_of(24, 8, 30, heads=4), selected([30, 17, 5, 0], 30)
    block = store.pack(view, selection, WINDOW)
    now = later(block, view, 1)
    expected = packed_in(store.pack(now.view, now.selection, WINDOW, now.earlier))
    found = packed_in(packed_by_triton(store, now.view, now.selection, now.earlier))
    assert differing(found, expected) < 0.01
    assert torch.equal(found.values.entries.data, expected.values.entries.data)


def test_keys_that_are_not_finite_are_refused() -> None:
    view, selection = layer_of(20, dtype=torch.float16), selected([9, 24], 24)
    view.keys[1, 2, 3] = torch.inf
    with pytest.raises(ModelError, match="keys of layer 0 contain infinities or NaN"):
        packed_by_triton(Packed(precision=Bits(high=4, round="queries")), view, selection)


def differing(found: PackedBlock, expected: PackedBlock) -> float:
    """Share of the integers of keys that differ; sums of other orders may differ by half-way numbers."""
    here, there = (
        unpack_rows(block.keys.entries.data, block.key_dim, block.keys.entries.bits, signed=True)
        for block in (found, expected)
    )
    return float((here != there).double().mean())


def seen_error(block: PackedBlock, view: LayerView, selection: Selection) -> float:
    """Sum of eᵀ H e over the slots, H as queries see keys in the model's coordinates."""
    head = selection.heads(CPU)
    errors = (
        block.recover(torch.arange(len(head)))[0].double() - view.keys[head, selection.positions].double()
    ).numpy()
    seen = [seen_by(view, each, np.eye(block.key_dim)) for each in range(len(view.keys))]
    return float(sum(error @ seen[each] @ error for error, each in zip(errors, head.tolist(), strict=True)))
