"""A token that is appended and attended to by one call, against loops in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from winnow.kernels import native
from winnow.kernels.interface import AttentionSpec, DecodePlan, TailSegments
from winnow.kernels.step import DecodeStep

pytestmark = pytest.mark.skipif(native.library() is None, reason="the native library was not built")

CAPACITY, SPEC = 5, AttentionSpec(0.3)


class Layer:
    """A tail without a prefix, a ring and the step over them; the last column of the tail is far from what is held."""

    def __init__(self, lengths: list[int], heads: int, group: int, dims: tuple[int, int], ring: bool = True) -> None:
        generator = torch.Generator().manual_seed(0)
        rows, (dim, value_dim) = len(lengths), dims
        self.sizes = rows, heads, group, dim, value_dim
        self.generator = generator
        self.keys = torch.randn(rows, heads, CAPACITY, dim, generator=generator)
        self.values = torch.randn(rows, heads, CAPACITY, value_dim, generator=generator)
        self.lengths = torch.tensor(lengths)
        self.ring = torch.zeros(rows, heads * group, 3, dim) if ring else None
        tail = TailSegments(self.keys, self.values, self.lengths)
        self.plan = DecodePlan([None] * rows, tail, SPEC)
        step = DecodeStep.over(self.plan, tail, self.ring, self.token()[0])
        assert step is not None
        self.step = step

    def token(self) -> tuple[Tensor, Tensor, Tensor]:
        """A query, keys and values of a new token."""
        rows, heads, group, dim, value_dim = self.sizes
        shapes = (heads * group, dim), (heads, dim), (heads, value_dim)
        query, keys, values = (torch.randn(rows, each, 1, d, generator=self.generator) for each, d in shapes)
        return query, keys, values


def attended(layer: Layer, query: Tensor) -> Tensor:
    """[R, 1, Hq, Dv] in float64, token by token."""
    rows, heads, group, _, value_dim = layer.sizes
    output = torch.zeros(rows, 1, heads * group, value_dim, dtype=torch.float64)
    for row in range(rows):
        for head in range(heads * group):
            weights = [
                float(
                    torch.exp(
                        SPEC.scaling * (query[row, head, 0].double() @ layer.keys[row, head // group, t].double())
                    )
                )
                for t in range(int(layer.lengths[row]))
            ]
            for t, weight in enumerate(weights):
                output[row, 0, head] += weight / sum(weights) * layer.values[row, head // group, t].double()
    return output


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(0, CAPACITY - 2), min_size=1, max_size=3),
    heads=st.integers(1, 3),
    group=st.integers(1, 3),
    dims=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    ring=st.booleans(),
)
def test_a_token_is_held_and_attended_to(lengths, heads, group, dims, ring):
    layer = Layer(lengths, heads, group, dims, ring)
    for column in (2, 0):
        query, keys, values = layer.token()
        before = layer.lengths.tolist()
        assert layer.step.takes(keys, values)
        assert layer.step.asks(query)
        output = layer.step.run(query, keys, values, column)
        assert layer.lengths.tolist() == [length + 1 for length in before]
        for row, length in enumerate(before):
            assert torch.equal(layer.keys[row, :, length], keys[row, :, 0])
            assert torch.equal(layer.values[row, :, length], values[row, :, 0])
        if layer.ring is not None:
            assert torch.equal(layer.ring[:, :, column], query[:, :, 0])
        torch.testing.assert_close(output.double(), attended(layer, query), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("lengths", "column"), [([CAPACITY, 1], 0), ([1, CAPACITY], 0), ([1, 1], 3), ([1, 1], -1)])
def test_nothing_is_written_where_there_is_no_room(lengths, column):
    layer = Layer(lengths, 2, 2, (8, 8))
    held = [each.clone() for each in (layer.keys, layer.values, layer.lengths, layer.ring)]
    assert layer.step.run(*layer.token(), column) is None
    assert all(map(torch.equal, (layer.keys, layer.values, layer.lengths, layer.ring), held))


def test_what_is_of_another_kind_is_neither_taken_nor_asked():
    layer = Layer([1, 2], 2, 2, (8, 8))
    query, keys, values = layer.token()
    others = [
        keys.to(torch.bfloat16),
        keys.repeat(1, 1, 2, 1),
        keys[:1],
        keys.to("meta"),
        keys.repeat(1, 1, 1, 2)[..., ::2],
        keys.reshape(1, 4, 1, 8),
    ]
    for other in others:
        assert not layer.step.takes(other, values)
    assert not any(layer.step.takes(keys, other) for other in others[:5])
    wide = query.repeat(1, 1, 1, 2)[..., ::2]
    assert not any(layer.step.asks(other) for other in (query.double(), query[:1], query.to("meta"), wide))


def test_there_is_none_where_other_kernels_serve_or_a_ring_cannot_be_written():
    layer = Layer([1], 1, 1, (8, 8))
    tail = TailSegments(layer.keys, layer.values, layer.lengths)
    query = layer.token()[0]
    assert DecodeStep.over(object(), tail, None, query) is None
    assert DecodeStep.over(layer.plan, tail, torch.zeros(1, 1, 3, 16)[..., ::2], query) is None
    assert DecodeStep.over(layer.plan, tail, torch.zeros(1, 1, 3, 8, dtype=torch.float16), query) is None
