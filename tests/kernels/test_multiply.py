"""Products that kernels are measured against: as many as are asked for, however many threads share them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

from support.instruction_sets import needs_native
from winnow.kernels.native import multiply
from winnow.kernels.native_args import DTYPES

pytestmark = needs_native
MOST_AT_ONCE = 16 * 32
"""Products that are made together, at most."""


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    used = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(used)


def test_no_fewer_products_than_are_asked_for_and_hardly_more(isa: str, threads: int) -> None:
    for dtype, bits, products in itertools.product(DTYPES, (16, 8, 4), (1, 100_000, 5_000_001)):
        pieces = products // (1 << 16) + threads + 1
        assert products <= multiply(products, bits, dtype) < products + pieces * MOST_AT_ONCE
