"""The read that kernels are measured against: it reads everything, however many threads share it."""

from __future__ import annotations

import pytest
import torch

from support.instruction_sets import needs_native
from winnow.kernels.native import read_sum

pytestmark = needs_native
MEGABYTE = 1 << 20


def sums(numbers: torch.Tensor) -> set[int]:
    """The sums that a read finds on one, two and more threads."""
    used, found = torch.get_num_threads(), set()
    for threads in (1, 2, 3, 5):
        torch.set_num_threads(threads)
        found.add(read_sum(numbers))
    torch.set_num_threads(used)
    return found


@pytest.mark.parametrize("size", [4, 300, MEGABYTE // 4, 3 * MEGABYTE + 12, 9 * MEGABYTE])
def test_every_number_is_read_once_by_any_number_of_threads(size: int) -> None:
    numbers = torch.randint(100, (size // 4,), dtype=torch.int32)
    assert sums(numbers) == {int(numbers.sum())}


def test_sums_beyond_32_bits_are_the_same_on_any_number_of_threads() -> None:
    assert len(sums(torch.randint(-(2**31), 2**31 - 1, (9 * MEGABYTE // 4,), dtype=torch.int32))) == 1
