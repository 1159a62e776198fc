"""Decode attention of dense prefixes in Triton against a float64 oracle, under the interpreter or on a GPU."""

from __future__ import annotations

import pytest
import torch

from support.dense_attention import CASES, DTYPES, solved
from support.gpu import TOLERANCE, solved_by_triton


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_every_case_matches_the_oracle(name: str, dtype: torch.dtype) -> None:
    problem, expected = solved(name, dtype)
    relative, absolute = TOLERANCE[dtype]
    torch.testing.assert_close(solved_by_triton(problem).double(), expected, rtol=relative, atol=absolute)
