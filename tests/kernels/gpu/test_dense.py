"""Decode attention of dense prefixes in Triton against a float64 oracle, under the interpreter or on a GPU."""

from __future__ import annotations

import pytest
import torch

from support.dense_attention import CASES, DTYPES, build, oracle
from support.gpu import DEVICE, TOLERANCE, solved_by_triton
from support.turns import each_value

FEWER = CASES["sliced queries"]._replace(queries=45, capacity=66, lengths=[57])
"""Several blocks of queries in every dtype; the interpreter takes seconds for 190."""


@pytest.mark.parametrize(("name", "dtype"), each_value(list(CASES), list(DTYPES)))
def test_every_case_matches_the_oracle(name: str, dtype: torch.dtype) -> None:
    problem = build(FEWER if name == "sliced queries" and DEVICE.type == "cpu" else CASES[name], dtype)
    relative, absolute = TOLERANCE[dtype]
    torch.testing.assert_close(solved_by_triton(problem).double(), oracle(problem), rtol=relative, atol=absolute)
