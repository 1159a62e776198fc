"""Attention in plain torch against a float64 oracle, and the cases that are left to it."""

from __future__ import annotations

import warnings

import pytest
import torch

from support.dense_attention import CASES, DTYPES, assert_close, build, oracle, solved
from winnow.kernels import DenseBlock, TailSegments, attend, backend, native
from winnow.kernels.reference import ReferencePlan


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_reference_matches_oracle(name: str, dtype: torch.dtype) -> None:
    problem, expected = solved(name, dtype)
    plan = ReferencePlan(problem.prefixes, problem.tail, problem.spec)
    assert_close(plan.run(problem.query), expected, dtype)


@pytest.mark.usefixtures("unloaded")
def test_reference_on_request_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINNOW_KERNELS", "reference")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert backend() == "torch reference"
        problem = build(CASES["four"])
        assert_close(attend(*problem), oracle(problem), torch.float32)
    with pytest.raises(RuntimeError, match="ReferencePlan"):
        native.NativePlan(problem.prefixes, problem.tail, problem.spec)


def test_double_precision_is_left_to_the_reference() -> None:
    problem = build(CASES["pairs"])
    prefix = problem.prefixes[0]
    assert prefix is not None
    wide = DenseBlock(prefix.keys.double(), prefix.values.double(), prefix.offsets)
    tail = TailSegments(problem.tail.keys.double(), problem.tail.values.double(), problem.tail.lengths)
    out = attend(problem.query.double(), [wide], tail, problem.spec)
    torch.testing.assert_close(out, oracle(problem), rtol=0, atol=1e-5)
