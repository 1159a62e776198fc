"""Keys of which no channel was kept: all logits are zero, and nothing is read in their place."""

from __future__ import annotations

import pytest
import torch

from winnow.kernels import AttentionSpec, PackedBlock, TailSegments, native
from winnow.kernels.formats.bits import row_bytes
from winnow.kernels.formats.entries import Entries
from winnow.kernels.formats.packed import PackedKeys, PackedValues

HEADS, SLOTS, DIM = 2, 70, 64


@pytest.mark.skipif(native.library() is None, reason="the native library was not built")
@pytest.mark.parametrize("bits", [16, 8, 4, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_slot_counts_as_much(bits: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(HEADS * SLOTS, DIM, generator=generator).to(dtype)
    if bits == 16:
        entries = Entries(values.new_zeros(len(values), 0), 16)
    else:
        data = torch.zeros(len(values), row_bytes(0, bits), dtype=torch.uint8)
        entries = Entries(data, bits, torch.ones(len(values), dtype=dtype))
    keys = PackedKeys(DIM, entries, torch.zeros(HEADS, 0, dtype=torch.int16))
    offsets = torch.arange(HEADS + 1) * SLOTS
    block = PackedBlock(keys, PackedValues(DIM, Entries(values, 16)), offsets, dtype)
    empty = torch.empty(1, HEADS, 0, DIM, dtype=dtype)
    tail = TailSegments(empty, empty, torch.zeros(1, dtype=torch.int64))
    query = torch.randn(1, HEADS, 1, DIM, generator=generator).to(dtype)
    found = native.NativePlan([block], tail, AttentionSpec(DIM**-0.5)).run(query)
    expected = values.view(HEADS, SLOTS, DIM).float().mean(1)
    torch.testing.assert_close(found[0, 0].float(), expected, rtol=2**-8, atol=2e-3)
