"""Random layers, and the slots that a store made of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from support.views import random_view
from winnow.kernels import Block, PackedBlock, parts_of
from winnow.select import Selection
from winnow.view import LayerView

ROUNDING = {torch.float32: 2.0**-19, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
"""Largest relative error of a slot's statistic that was rounded to the model's dtype."""
DIMS = [(20, 20), (40, 24), (80, 80), (96, 128), (128, 96)]
WINDOW = 4


def layer_of(
    dim: int = 20,
    value_dim: int | None = None,
    length: int = 24,
    heads: int = 2,
    group: int = 2,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    layer: int = 0,
) -> LayerView:
    """A random layer whose queries use some channels far more than others and have a mean, as real ones do."""
    view = random_view(heads, group, length, dim, seed=seed, layer=layer)
    generator = torch.Generator().manual_seed(1000 + seed)
    weights = torch.rand(heads * group, 1, dim, generator=generator) + 0.2
    shift = torch.randn(heads * group, 1, dim, generator=generator)
    values = torch.randn(heads, length, value_dim or dim, generator=generator)
    return view._replace(
        queries=(view.queries * weights + shift).to(dtype), keys=view.keys.to(dtype), values=values.to(dtype)
    )


def selected(counts: Sequence[int], length: int, window: int = WINDOW, seed: int = 0) -> Selection:
    """Random positions of every head, the window's among them as far as the head has room for it."""
    generator = torch.Generator().manual_seed(seed)
    positions = []
    for count in counts:
        recent = min(count, window, length)
        older = torch.randperm(length - recent, generator=generator)[: count - recent]
        positions.append(torch.cat([older, torch.arange(length - recent, length)]).sort().values)
    offsets = torch.tensor([0, *np.cumsum([len(each) for each in positions]).tolist()])
    return Selection(torch.cat(positions), offsets)


class Slot(NamedTuple):
    """A kept slot: where it comes from, and what it was and is in float64."""

    head: int
    position: int
    recent: bool
    """True for one of the head's slots in the window."""
    key: np.ndarray
    value: np.ndarray
    found_key: np.ndarray
    found_value: np.ndarray


def slots_of(block: Block, view: LayerView, selection: Selection, window: int) -> Iterator[Slot]:
    """Every kept slot, head after head, beside what the block takes it for."""
    assert torch.equal(block.offsets, selection.offsets)
    found = [each.double().numpy() for each in block.recover(torch.arange(int(block.offsets[-1])))]
    there = [view.keys.double().numpy(), view.values.double().numpy()]
    length, positions = view.keys.shape[1], selection.positions.tolist()
    for head, (start, stop) in enumerate(pairwise(selection.offsets.tolist())):
        for index, position in enumerate(positions[start:stop], start):
            was, now = [each[head, position].copy() for each in there], [each[index].copy() for each in found]
            yield Slot(head, position, position >= length - window, *was, *now)


def packed_in(block: Block) -> PackedBlock:
    """The only packed part of a prefix."""
    (part,) = [part for part in parts_of(block) if isinstance(part, PackedBlock)]
    return part


def bytes_held(block: Block, selection: Selection) -> int:
    """All that a prefix takes: its tensors by kind, and an int32 for every position."""
    return sum(block.bytes().values()) + 4 * len(selection.positions)


def assert_same_tensors(found: Any, expected: Any) -> None:
    """Two blocks hold the same bytes."""
    assert type(found) is type(expected)
    if isinstance(expected, Tensor):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    elif isinstance(expected, tuple):
        for one, other in zip(found, expected, strict=True):
            assert_same_tensors(one, other)
    elif hasattr(expected, "__dataclass_fields__"):
        for name in expected.__dataclass_fields__:
            assert_same_tensors(getattr(found, name), getattr(expected, name))
    else:
        assert found == expected
