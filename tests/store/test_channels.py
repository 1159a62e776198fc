"""Shares of channels."""

from __future__ import annotations

import pytest
import torch

from winnow.store import Spark, Think
from winnow.store.channels import all_finite

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("ratio", [0.05, 0.1, 0.15, 0.29, 0.3, 0.35, 0.55, 0.57, 0.58, 0.7, 0.9])
@pytest.mark.parametrize("dim", [20, 40, 80, 100, 128])
def test_a_share_of_the_channels_is_taken_as_it_is_written(ratio: float, dim: int) -> None:
    """⌊λD⌋ of decimal fractions, which binary ones may miss: 0.29 of 100 is 29."""
    expected = dim - int(round(ratio * 100) * dim // 100)
    assert (Spark(ratio=ratio).rule(dim).most, Think(ratio=ratio).kept(dim)) == (expected, expected)


def test_numbers_whose_sum_is_beyond_all_are_finite_themselves() -> None:
    large = torch.full((4,), 3e38)
    assert all_finite(large)
    assert all_finite(torch.tensor([3e38, 3e38, -1.0]))
    for odd in (torch.inf, -torch.inf, torch.nan):
        assert not all_finite(torch.cat([large, torch.tensor([odd])]))
        assert not all_finite(torch.tensor([1.0, odd]).half())
