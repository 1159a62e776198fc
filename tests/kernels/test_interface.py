"""Plans of decode attention, whichever kernels serve them."""

from __future__ import annotations

import pytest
import torch

from support.dense_attention import CASES, Case, assert_close, build, oracle
from support.instruction_sets import needs_native
from winnow.cache.stats import storage_bytes
from winnow.kernels import DecodePlan, attend, native
from winnow.kernels.reference import ReferencePlan


@pytest.mark.parametrize("plan_type", [pytest.param(native.NativePlan, marks=needs_native), ReferencePlan])
def test_lengths_are_read_at_every_step(plan_type: type[ReferencePlan] | type[native.NativePlan]) -> None:
    problem = build(Case(2, 1, 64, 64, [[40, 3]], 30, [30]))
    plan = plan_type(problem.prefixes, problem.tail, problem.spec)
    for length in (1, 17, 30):
        problem.tail.lengths[0] = length
        assert_close(plan.run(problem.query), oracle(problem), torch.float32)


@pytest.mark.parametrize("plan_type", [pytest.param(native.NativePlan, marks=needs_native), ReferencePlan])
def test_rows_share_a_prefix(plan_type: type[ReferencePlan] | type[native.NativePlan]) -> None:
    problem = build(Case(2, 1, 64, 64, [[40, 3], None, None], 30, [5, 30, 2]))
    problem = problem._replace(prefixes=[problem.prefixes[0]] * 3)
    plan = plan_type(problem.prefixes, problem.tail, problem.spec)
    assert_close(plan.run(problem.query), oracle(problem), torch.float32)


@needs_native
def test_one_plan_takes_any_number_of_new_tokens() -> None:
    problem = build(Case(2, 4, 64, 64, [[40, 3]], 30, [30]))
    plan = DecodePlan(problem.prefixes, problem.tail, problem.spec)
    for tokens in (1, 4, 2):
        part = problem._replace(query=problem.query[:, :, :tokens])
        assert_close(plan.run(part.query), oracle(part), torch.float32)


@needs_native
def test_any_query_layout() -> None:
    problem = build(CASES["several rows"])
    expected = attend(*problem)
    last_axis_strided = torch.stack([problem.query, problem.query], -1)[..., 0]
    assert not last_axis_strided.is_contiguous()
    for query in (problem.query.contiguous(), last_axis_strided, problem.query.repeat(2, 1, 1, 1)[:4]):
        assert torch.equal(attend(query, *problem[1:]), expected)


def test_the_reference_counts_the_tensors_of_its_blocks() -> None:
    """Rows that share a prefix share its blocks; every block has 64 slots."""
    problem = build(Case(2, 1, 64, 64, [[70, 3, 0, 129], [0, 0, 5, 0], None, None], 8, [8] * 4))
    first, second = problem.prefixes[:2]
    plan = ReferencePlan([first, second, first, None], problem.tail, problem.spec)
    held = [each for pieces in plan.blocks.values() for blocks in pieces for each in blocks]
    assert plan.nbytes() == storage_bytes(held) == (2 + 1 + 3 + 1) * (64 * 8 + 64 + 8)


@needs_native
def test_the_compiled_kernels_count_their_copy_of_the_sinks() -> None:
    for name, size in (("sinks", 8 * 4), ("pairs", 0)):
        problem = build(CASES[name])
        assert native.NativePlan(problem.prefixes, problem.tail, problem.spec).nbytes() == size
        assert DecodePlan(problem.prefixes, problem.tail, problem.spec).nbytes() == size
