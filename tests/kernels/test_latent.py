"""Attention over latents that all heads share, against loops in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.views import random_view
from winnow.kernels import AttentionSpec, DenseBlock, TailSegments
from winnow.kernels import latent as module
from winnow.kernels.formats import Block
from winnow.kernels.latent import LatentAttention
from winnow.select import everything
from winnow.store import Bits, Packed

LATENT, ROTATED, HEADS, CAPACITY = 6, 4, 3, 5


def block(slots: int, seed: int, dtype: torch.dtype = torch.float32) -> DenseBlock:
    torch.manual_seed(seed)
    keys, values = torch.randn(slots, LATENT).to(dtype), torch.randn(slots, ROTATED).to(dtype)
    return DenseBlock(keys, values, torch.tensor([0, slots]))


def tail(lengths: list[int], dtype: torch.dtype = torch.float32) -> TailSegments:
    torch.manual_seed(99)
    rows = len(lengths)
    keys = torch.randn(rows, 1, CAPACITY, LATENT).to(dtype)
    values = torch.randn(rows, 1, CAPACITY, ROTATED).to(dtype)
    for row, length in enumerate(lengths):
        keys[row, :, length:], values[row, :, length:] = math.nan, math.nan
    return TailSegments(keys, values, torch.tensor(lengths))


def oracle(
    latent: Tensor, rotated: Tensor, blocks: list[Block | None], dense: TailSegments, spec: AttentionSpec
) -> Tensor:
    rows, heads, tokens, size = latent.shape
    out = torch.zeros(rows, heads, tokens, size, dtype=torch.float64)
    for row in range(rows):
        length = int(dense.lengths[row])
        seen = []
        if blocks[row] is not None:
            keys, values = blocks[row].recover(torch.arange(int(blocks[row].starts[0]), int(blocks[row].stops[0])))
            seen = list(zip(keys.double(), values.double(), strict=True))
        later = list(zip(dense.keys[row, 0].double(), dense.values[row, 0].double(), strict=True))
        for head in range(heads):
            for i in range(tokens):
                visible = seen + later[: max(0, length - (tokens - 1 - i))]
                query, turned = latent[row, head, i].double(), rotated[row, head, i].double()
                logits = [spec.scaling * float(query @ c + turned @ r) for c, r in visible]
                if spec.softcap:
                    logits = [spec.softcap * math.tanh(x / spec.softcap) for x in logits]
                sink = [] if spec.sinks is None else [float(spec.sinks[head])]
                if not visible:
                    continue
                top = max(logits + sink)
                total = sum(math.exp(x - top) for x in logits + sink)
                for x, (c, _) in zip(logits, visible, strict=True):
                    out[row, head, i] += math.exp(x - top) / total * c
    return out


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([None, 0, 1, 2]), st.integers(0, CAPACITY)), min_size=1, max_size=4),
    st.integers(1, 3),
    st.none() | st.just(2.0),
    st.booleans(),
    st.sampled_from([2, 8192]),
)
def test_latents_are_attended_to_as_defined(rows, tokens, softcap, with_sinks, at_once):
    """Rows that have the same block share it; `at_once`: latents per piece."""
    held = [block(1, 0), block(7, 1), block(20, 2)]
    blocks = [None if which is None else held[which] for which, _ in rows]
    dense = tail([length for _, length in rows])
    sinks = torch.tensor([0.5, -1.0, 2.0]) if with_sinks else None
    spec = AttentionSpec(0.7, softcap, sinks)
    torch.manual_seed(5)
    latent, rotated = torch.randn(len(rows), HEADS, tokens, LATENT), torch.randn(len(rows), HEADS, tokens, ROTATED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LEAST", 1)
        patch.setattr(module, "_MOST", at_once)
        found = LatentAttention(blocks, dense, spec).run(latent, rotated)
    expected = oracle(latent, rotated, blocks, dense, spec)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bits", [8, 4])
def test_packed_latents_are_read_as_they_come_back(bits):
    view = random_view(heads=1, length=40, dim=8)
    packed = Packed(precision=Bits(bits)).pack(view, everything(view.keys), window=0)
    dense = TailSegments(torch.randn(1, 1, 2, 8), torch.randn(1, 1, 2, 8), torch.tensor([2]))
    spec = AttentionSpec(0.4)
    latent, rotated = torch.randn(1, HEADS, 1, 8), torch.randn(1, HEADS, 1, 8)
    found = LatentAttention([packed], dense, spec).run(latent, rotated)
    torch.testing.assert_close(found.double(), oracle(latent, rotated, [packed], dense, spec), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_single(dtype):
    blocks, dense = [block(20, 2, dtype)], tail([3], dtype)
    latent, rotated = torch.randn(1, HEADS, 2, LATENT).to(dtype), torch.randn(1, HEADS, 2, ROTATED).to(dtype)
    found = LatentAttention(blocks, dense, AttentionSpec(0.7)).run(latent, rotated)
    torch.testing.assert_close(
        found.double(), oracle(latent, rotated, blocks, dense, AttentionSpec(0.7)), atol=1e-5, rtol=1e-5
    )


def test_several_heads_and_wrong_lengths_are_refused():
    several = TailSegments(torch.randn(1, 2, 3, LATENT), torch.randn(1, 2, 3, ROTATED), torch.tensor([1]))
    with pytest.raises(ValueError, match="one head that all share"):
        LatentAttention([None], several, AttentionSpec(1.0))
    dense = tail([2])
    attention = LatentAttention([None], dense, AttentionSpec(1.0))
    dense.lengths[0] = CAPACITY + 1
    with pytest.raises(ValueError, match="exceed the capacity"):
        attention.run(torch.randn(1, HEADS, 1, LATENT), torch.randn(1, HEADS, 1, ROTATED))
