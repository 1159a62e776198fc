"""Turns of many tokens: attended to a slice at a time, in memory that is bounded and given back."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.dense_attention import Case
from support.dense_attention import build as build_dense
from support.gpu import TOLERANCE, TritonPlan, solved_by_triton
from support.launches import Operators, counted_launches
from support.packed_attention import DENSE, KEYS, VALUES, Layer, build
from support.packed_oracle import oracle
from winnow.kernels.gpu import scratch

FP32 = torch.float32
MANY = Case(4, 3000, 64, 64, [[300, 7], [20, 900]], 3000, [3000, 3000])
"""Two rows that go on with 3,000 tokens: 190 MB, were all of them attended to at once."""


def sliced(most: int) -> Any:
    """Slices of so many tokens."""
    return mock.patch.object(scratch.Needs, "tokens_at_a_time", lambda needs, tokens: min(tokens, most))


@pytest.mark.parametrize(("keys", "values"), [("rotated and centered 2", "rotated 8"), ("spark", "4 by 32")])
def test_slices_that_do_not_divide_the_tokens(keys: str, values: str) -> None:
    """Eleven tokens, four at a time; the first three see nothing of a tail that is shorter."""
    forms = [(KEYS[keys], VALUES[values]), (DENSE, DENSE)]
    layer = Layer([forms], [[[5], [2]]], [0, None], 32, 32, queries=11, tail=8, softcap=3.0, sinks=True)
    problem = build(layer)
    plan = TritonPlan(problem.prefixes, problem.tail, problem.spec)
    with sliced(4):
        with counted_launches() as launches:
            plan.run(problem.query)
        found = solved_by_triton(problem)
    assert launches.count("join_chunks") == 3
    torch.testing.assert_close(found.double(), oracle(problem), rtol=1e-5, atol=1e-5)


@settings(max_examples=5, deadline=None, derandomize=True)
@given(
    tokens=st.integers(1, 20),
    most=st.integers(1, 9),
    group=st.integers(1, 5),
    tail=st.integers(0, 20),
    dtype=st.sampled_from([FP32, torch.bfloat16, torch.float16]),
)
def test_any_slices(tokens: int, most: int, group: int, tail: int, dtype: torch.dtype) -> None:
    problem = build(Layer([[(KEYS["8"], DENSE)]], [[[3]]], [0], 16, 24, group, tokens, tail), dtype)
    relative, absolute = TOLERANCE[dtype]
    with sliced(most):
        found = solved_by_triton(problem)
    torch.testing.assert_close(found.double(), oracle(problem), rtol=relative, atol=absolute)


@given(chunks=st.integers(1, 10**5), group=st.integers(1, 64), tokens=st.integers(1, 10**5), sets=st.integers(0, 64))
def test_a_slice_is_as_long_as_the_bound_allows(chunks: int, group: int, tokens: int, sets: int) -> None:
    needs = scratch.Needs(sets, chunks, 8 * group, group, 64, 128, torch.bfloat16)
    found = needs.tokens_at_a_time(tokens)
    # Prepared queries with a bias, then two numbers and a sum of values for each chunk.
    token = sets * 8 * group * (64 * 2 + 4) + chunks * group * (128 + 2) * 4
    assert found == tokens or (found < tokens and found & (found - 1) == 0)
    assert found * token <= scratch.MOST or found == 1
    assert found == tokens or 2 * found * token > scratch.MOST


def test_memory_of_many_tokens_is_bounded_and_given_back() -> None:
    query, prefixes, tail, spec = build_dense(MANY)
    plan = TritonPlan(prefixes, tail, spec)
    before = plan.nbytes()
    with counted_launches(), Asked() as asked:
        output = plan.run(query)
    assert 16 << 20 < asked.bytes - output.nbytes <= scratch.MOST
    assert plan.nbytes() == before


def test_memory_of_a_few_tokens_is_kept_for_fewer() -> None:
    query, prefixes, tail, spec = build_dense(MANY._replace(queries=5))
    plan = TritonPlan(prefixes, tail._replace(lengths_there=tail.lengths), spec)
    before = plan.nbytes()
    with counted_launches():
        plan.run(query)
        kept = plan.nbytes() - before
        with Asked() as asked:
            output = plan.run(query[:, :, :2])
    assert asked.bytes == output.nbytes
    assert 0 < kept == plan.nbytes() - before <= scratch.KEPT


def test_a_step_that_takes_much_keeps_nothing() -> None:
    query, prefixes, tail, spec = build_dense(MANY._replace(queries=1))
    plan = TritonPlan(prefixes, tail, spec)
    before = plan.nbytes()
    with counted_launches(), mock.patch.object(scratch, "KEPT", 1000):
        plan.run(query)
    assert plan.nbytes() == before


class Asked(Operators):
    """Bytes of new tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(function, types, args, kwargs)
        if self.names[-1] in ("new_empty", "empty"):
            self.bytes += result.nbytes
        return result
