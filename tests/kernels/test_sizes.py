"""Prefixes, tails and queries that do not fit together are refused."""

from __future__ import annotations

import pytest
import torch

from support.dense_attention import CASES, Case, build
from support.instruction_sets import needs_native
from winnow.kernels import DecodePlan, DenseBlock, native
from winnow.kernels.reference import ReferencePlan


@pytest.mark.parametrize("plan_type", [pytest.param(native.NativePlan, marks=needs_native), ReferencePlan])
@pytest.mark.parametrize("length", [-1, 31])
def test_lengths_beyond_the_buffer_are_refused(
    plan_type: type[ReferencePlan] | type[native.NativePlan], length: int
) -> None:
    problem = build(Case(2, 1, 64, 64, [[40, 3]], 30, [30]))
    problem.tail.lengths[0] = length
    with pytest.raises(ValueError, match="capacity"):
        plan_type(problem.prefixes, problem.tail, problem.spec).run(problem.query)


def test_parts_that_do_not_fit_are_refused() -> None:
    query, prefixes, tail, spec = build(CASES["several rows"])
    prefix = prefixes[0]
    assert prefix is not None
    with pytest.raises(ValueError, match="rows"):
        DecodePlan(prefixes[:2], tail, spec)
    with pytest.raises(ValueError, match="agree"):
        DecodePlan(prefixes, tail._replace(values=tail.values.half()), spec)
    with pytest.raises(ValueError, match="contiguous"):
        DecodePlan(prefixes, tail._replace(keys=tail.keys.mT.contiguous().mT), spec)
    with pytest.raises(ValueError, match="int64"):
        DecodePlan(prefixes, tail._replace(lengths=tail.lengths.int()), spec)
    with pytest.raises(ValueError, match="head size"):
        DecodePlan(prefixes, tail, spec).run(query[..., :32])
    with pytest.raises(ValueError, match="cast"):
        DecodePlan(prefixes, tail, spec).run(query.half())
    with pytest.raises(ValueError, match="sinks"):
        DecodePlan(prefixes, tail, spec._replace(sinks=torch.zeros(3))).run(query)
    with pytest.raises(ValueError, match="partition"):
        DenseBlock(prefix.keys, prefix.values, prefix.offsets + 1)
    with pytest.raises(ValueError, match="contiguous"):
        DenseBlock(prefix.keys.t().contiguous().t(), prefix.values, prefix.offsets)
