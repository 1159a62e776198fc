"""Integers with scales, as they lie in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from support.packed_slots import layer_of, packed_in, selected
from support.stores import plain_bits
from winnow.kernels.formats.entries import symmetric_groups
from winnow.store import Packed


def written_integers(data: Tensor, count: int, bits: int) -> np.ndarray:
    """Unsigned integers [n, count] out of bytes, one by one as `winnow.kernels.formats.bits` documents them."""
    rows = data.numpy()
    if bits in (6, 3):
        low = {6: 4, 3: 2}[bits]
        border = -(-count * low // 8)
        high = written_integers(data[:, border:], count, bits - low)
        return written_integers(data[:, :border], count, low) + (high << low)
    if bits == 8:
        return rows.astype(int)
    together = 64 if bits == 1 else 16 * 8 // bits
    found = np.zeros((len(rows), count), dtype=int)
    for number in range(count):
        block, inside = divmod(number, together)
        whole = together * bits // 8
        width = min(whole, -(-(count - block * together) * bits // 8))
        shift = inside // width * bits
        found[:, number] = rows[:, block * whole + inside % width] >> shift & (1 << bits) - 1
    return found


@pytest.mark.parametrize("shape", [(0, 40), (5, 0), (0, 0), (1, 1)])
def test_rows_of_nothing_have_no_groups(shape: tuple[int, int]) -> None:
    entries = symmetric_groups(torch.ones(shape), 3, torch.float32, 32)
    assert entries.scales is not None
    assert entries.scales.shape == (shape[0], -(-shape[1] // 32))
    assert entries.decode(entries.data, torch.arange(shape[0]), shape[1]).tolist() == torch.ones(shape).tolist()


@pytest.mark.parametrize("bits", [8, 6, 4, 3, 2])
@pytest.mark.parametrize("dim", [20, 40, 33, 64, 65, 96, 128])
def test_integers_lie_in_memory_as_documented(dim: int, bits: Any) -> None:
    view, selection = layer_of(dim), selected([9, 24], 24)
    block = packed_in(Packed(precision=plain_bits(high=bits)).pack(view, selection, 0))
    entries = block.keys.entries
    assert entries.data.dtype == torch.uint8
    planes = {6: (4, 2), 3: (2, 1)}.get(bits, (bits,))
    assert entries.data.shape == (33, sum(-(-dim * plane // 8) for plane in planes))
    unsigned = written_integers(entries.data, dim, bits)
    signed = np.where(unsigned >= 2 ** (bits - 1), unsigned - 2**bits, unsigned)
    assert entries.scales is not None
    expected = signed * entries.scales.double().numpy()[:, None]
    np.testing.assert_allclose(block.recover(torch.arange(33))[0], expected, rtol=1e-6)
