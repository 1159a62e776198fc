"""Integers and flags in bytes."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.packed_attention import pack_bits
from support.packed_oracle import numbers_of
from winnow.kernels.formats.bits import pack_flags, pack_rows, row_bytes, unpack_flags, unpack_rows


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(0, 150), st.sampled_from([8, 6, 4, 3, 2, 1]), st.booleans(), st.integers(0, 9))
def test_packed_rows_come_back(count: int, bits: int, signed: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    low = -(1 << (bits - 1)) if signed else 0
    numbers = torch.randint(low, low + (1 << bits), (3, count), generator=generator)
    packed = pack_rows(numbers, bits)
    assert packed.shape == (3, row_bytes(count, bits))
    assert unpack_rows(packed, count, bits, signed).tolist() == numbers.tolist()
    assert numbers_of(packed.numpy(), count, bits, signed).tolist() == numbers.tolist()


@settings(max_examples=30, deadline=None, derandomize=True)
@given(count=st.integers(0, 70), seed=st.integers(0, 9))
def test_packed_flags_come_back(count: int, seed: int) -> None:
    flags = torch.rand(3, count, generator=torch.Generator().manual_seed(seed)) < 0.5
    packed = pack_flags(flags)
    assert torch.equal(packed, pack_bits(flags))
    assert torch.equal(unpack_flags(packed, count), flags)
