"""The Walsh–Hadamard transform: against its matrix, and the compiled kernels against the torch form, to the bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.dense_attention import DTYPES
from support.instruction_sets import available
from support.packed_oracle import sylvester
from winnow.kernels import native
from winnow.kernels.formats.hadamard import hadamard, hadamard_block
from winnow.kernels.rotating import centered_rows, rotated_rows, smoothed_rows

SIZES = [1, 2, 3, 6, 8, 12, 16, 20, 24, 40, 64, 72, 80, 96, 112, 128, 192, 256, 576]


@pytest.mark.parametrize("dim", SIZES)
def test_it_is_the_product_with_sylvesters_matrix_and_its_own_inverse(dim: int) -> None:
    rows = torch.randn(7, 3, dim, generator=torch.Generator().manual_seed(dim))
    found = hadamard(rows)
    expected = rows.double() @ torch.from_numpy(sylvester(dim))
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(hadamard(found), rows, rtol=1e-5, atol=1e-5)


def test_blocks_are_the_largest_powers_of_two() -> None:
    assert [hadamard_block(dim) for dim in (1, 7, 12, 80, 96, 128)] == [1, 1, 4, 16, 32, 128]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.sampled_from(SIZES),
    st.integers(0, 600),
    st.sampled_from([*DTYPES, torch.float64]),
    st.sampled_from([1.0, 1e-39, 6e4]),
    st.integers(0, 9),
)
def test_kernels_agree_to_the_bit(dim: int, count: int, dtype: torch.dtype, size: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = (size * (torch.rand(count, 2 * dim, generator=generator) - 0.5)).to(dtype)[:, ::2]
    expected = hadamard(rows.float())
    used = native.isa() if available() else ""
    for isa in available():
        native.select_isa(isa)
        found = rotated_rows(rows)
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32)), isa
    if used:
        native.select_isa(used)


def test_outliers_are_spread() -> None:
    """One channel far larger than the others leaves the largest number sqrt(D) times smaller."""
    rows = torch.zeros(4, 128)
    rows[:, 60] = 100.0
    assert rotated_rows(rows).abs().max() == pytest.approx(100 / 128**0.5)


def test_means_and_spreads_are_those_of_a_rows_own_head() -> None:
    rows, constants = torch.randn(5, 8), torch.rand(2, 8) + 0.5
    head = torch.tensor([1, 0, 0, 1, 1])
    own = [(row, constants[int(mine)]) for row, mine in zip(rows, head, strict=True)]
    torch.testing.assert_close(centered_rows(rows, constants, head), torch.stack([row - c for row, c in own]))
    torch.testing.assert_close(smoothed_rows(rows, constants, head), torch.stack([row / c for row, c in own]))
