"""A query or a key that is not a number: answers say so in every instruction set, as the reference's do."""

from __future__ import annotations

import math

import pytest
import torch

from support.dense_attention import Case
from support.dense_attention import build as build_dense
from support.instruction_sets import needs_native
from support.packed_attention import KEYS, VALUES, Layer, build
from winnow.kernels import native, prefill
from winnow.kernels.interface import AttentionSpec
from winnow.kernels.prefill import Prompt
from winnow.kernels.reference import ReferencePlan

pytestmark = [needs_native, pytest.mark.usefixtures("isa", "threads")]

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
HEADS = [1, 5, 8]
"""Query heads of a KV head."""


def skip_tiles(isa: str) -> None:
    if isa == "amx":
        pytest.skip("tiles make integers of logits, which have no NaN")


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("group", HEADS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_broken_query(dtype: torch.dtype, group: int, broken: float) -> None:
    problem = build_dense(Case(group, 1, 64, 64, [[300, 64]], 4, [3]), dtype)
    problem.query[0, 1, 0, 5] = broken
    found = native.NativePlan(problem.prefixes, problem.tail, problem.spec).run(problem.query)
    expected = ReferencePlan(problem.prefixes, problem.tail, problem.spec).run(problem.query)
    assert torch.equal(found.isnan(), expected.isnan())
    assert expected.isnan().any()


@pytest.mark.parametrize("group", HEADS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_broken_key(dtype: torch.dtype, group: int) -> None:
    problem = build_dense(Case(group, 1, 64, 64, [[300, 64]], 4, [3]), dtype)
    problem.prefixes[0].keys[100] = math.nan
    found = native.NativePlan(problem.prefixes, problem.tail, problem.spec).run(problem.query)
    assert found[:, :, :group].isnan().all()
    assert found[:, :, group:].isfinite().all()


@pytest.mark.parametrize("group", HEADS)
@pytest.mark.parametrize("name", ["8", "4", "kivi 4", "4 by 32"])
def test_a_broken_query_of_packed_slots(name: str, group: int, isa: str) -> None:
    skip_tiles(isa)
    problem = build(Layer([[(KEYS[name], VALUES[name])]], [[[300, 64]]], [0], 64, 64, group), torch.bfloat16)
    problem.query[0, 1, 0, 5] = math.nan
    found = native.NativePlan(problem.prefixes, problem.tail, problem.spec).run(problem.query)
    expected = ReferencePlan(problem.prefixes, problem.tail, problem.spec).run(problem.query)
    assert torch.equal(found.isnan(), expected.isnan())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_broken_query_of_a_prompt(dtype: torch.dtype, isa: str) -> None:
    skip_tiles(isa)
    draw = torch.Generator().manual_seed(0)
    queries, keys, values = (torch.randn(heads, 70, 64, generator=draw).to(dtype) for heads in (4, 2, 2))
    queries[1, 30] = math.nan
    output = prefill.attended(Prompt(queries, keys, values), AttentionSpec(0.125))
    assert output[30, 1].isnan().all()
    output[30, 1] = 0
    assert output.isfinite().all()
