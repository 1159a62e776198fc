"""Prefixes of several blocks."""

from __future__ import annotations

import pytest
import torch

from support.packed_slots import WINDOW, layer_of, selected
from winnow.kernels import Parts, parts_of
from winnow.store import Dense, Packed, Spark


def test_no_slots_recover_to_nothing() -> None:
    """As where some slots of a prefix are asked for that all lie in one of its parts."""
    view, selection = layer_of(), selected([20, 24], 24)
    block = Packed(Spark()).pack(view, selection, WINDOW)
    recent = torch.arange(16, 20)
    keys, _ = block.recover(recent)
    assert torch.equal(keys, view.keys[0, selection.positions[recent]])


def test_parts_of_other_sizes_are_refused() -> None:
    dense = Dense().pack(layer_of(), selected([20, 24], 24), WINDOW)
    for other in (
        Dense().pack(layer_of(24), selected([20, 24], 24), WINDOW),
        Dense().pack(layer_of(heads=3), selected([20, 24, 3], 24), WINDOW),
        Dense().pack(layer_of(dtype=torch.bfloat16), selected([20, 24], 24), WINDOW),
    ):
        with pytest.raises(ValueError, match="must agree in heads, head sizes, dtype and device"):
            Parts((dense, other))


def test_parts_count_slots_and_bytes_of_all() -> None:
    view = layer_of()
    first, second = (Dense().pack(view, selected(counts, 24), WINDOW) for counts in ([20, 24], [3, 5]))
    both = Parts((first, second))
    assert both.offsets.tolist() == [0, 23, 52]
    assert both.starts.tolist() == [0, 23]
    assert both.stops.tolist() == [23, 52]
    assert both.bytes() == {kind: size + second.bytes()[kind] for kind, size in first.bytes().items()}
    assert (parts_of(both), parts_of(first)) == ((first, second), (first,))
