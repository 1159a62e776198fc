"""Masks per slot: what they promise, and what beginnings of rows take."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from support.packed_attention import DENSE, Format, Layer, build
from support.packed_slots import layer_of, packed_in, selected
from winnow.kernels import PackedBlock, native
from winnow.store import Packed, SparkP


@pytest.mark.parametrize("kept", ["mask", "ragged"])
def test_masks_that_promise_too_much_read_no_foreign_memory(kept: str, isas: list[str]) -> None:
    """The entries end before memory that must not be read; what comes out is not looked at."""
    problem = build(Layer([[(Format(kept=kept), DENSE)]], [[[37, 3]]], [0]))
    block = problem.prefixes[0]
    assert isinstance(block, PackedBlock)
    assert block.keys.pruned is not None
    pruned = dataclasses.replace(block.keys.pruned, masks=torch.full((40, 8), 255, dtype=torch.uint8))
    broken = dataclasses.replace(block, keys=dataclasses.replace(block.keys, pruned=pruned))
    for isa in isas:
        native.select_isa(isa)
        native.NativePlan([broken], problem.tail, problem.spec).run(problem.query)


def test_starts_of_few_slots_hold_no_more_than_they_show() -> None:
    view, selection = layer_of(), selected([10, 10], 24)
    pruned = packed_in(Packed(SparkP(share=0.9)).pack(view, selection, 0)).keys.pruned
    assert pruned is not None
    assert pruned.starts is not None
    assert pruned.starts.untyped_storage().nbytes() == pruned.starts.nbytes
