"""Dense blocks: views that begin later, and tensors that are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.dense_attention import DTYPES, Case, assert_close, assert_solved, build, oracle
from support.instruction_sets import needs_native
from winnow.kernels import DenseBlock, native
from winnow.kernels.reference import ReferencePlan


def later(prefix: DenseBlock, starts: list[int]) -> DenseBlock:
    """The same slots, of which head h reads those from its own starts[h] on."""
    return DenseBlock(prefix.keys, prefix.values, prefix.offsets, prefix.offsets[:-1] + torch.tensor(starts))


@pytest.mark.usefixtures("isa", "poison")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tail", [0, 9])
def test_rows_read_later_parts_of_one_prefix(dtype: torch.dtype, tail: int) -> None:
    """Rows over the same memory, each head from a slot of its own: the first, in the middle, the last, none."""
    problem = build(Case(4, 2, 64, 64, [[300, 0, 70], None, None, None], 9, [tail] * 4), dtype)
    whole = problem.prefixes[0]
    assert whole is not None
    rows = [whole, later(whole, [299, 0, 62]), later(whole, [37, 0, 0]), later(whole, [300, 0, 70])]
    problem = problem._replace(prefixes=rows)
    expected = oracle(problem)
    assert_solved(native.NativePlan(rows, problem.tail, problem.spec).run(problem.query), problem, expected)
    assert_close(ReferencePlan(rows, problem.tail, problem.spec).run(problem.query), expected, dtype)


@pytest.mark.parametrize("plan_type", [pytest.param(native.NativePlan, marks=needs_native), ReferencePlan])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_later_start_is_a_shorter_prefix(plan_type: type[ReferencePlan] | type[native.NativePlan], data: Any) -> None:
    slots = data.draw(st.lists(st.integers(0, 150), min_size=1, max_size=4))
    starts = [data.draw(st.integers(0, count)) for count in slots]
    problem = build(Case(2, 1, 32, 16, [slots], 5, [data.draw(st.integers(0, 5))]))
    whole = problem.prefixes[0]
    assert whole is not None
    heads = [
        slice(begin, end) for begin, end in zip(whole.offsets[:-1] + torch.tensor(starts), whole.stops, strict=True)
    ]
    cut = DenseBlock(
        torch.cat([whole.keys[head] for head in heads]),
        torch.cat([whole.values[head] for head in heads]),
        torch.tensor([0, *(count - start for count, start in zip(slots, starts, strict=True))]).cumsum(0),
    )
    viewed, copied = (
        plan_type([each], problem.tail, problem.spec).run(problem.query) for each in (later(whole, starts), cut)
    )
    assert torch.equal(viewed, copied)


def test_starts_outside_their_heads_are_refused() -> None:
    prefix = build(Case(2, 1, 16, 16, [[4, 2]], 1, [1])).prefixes[0]
    assert prefix is not None
    for starts in ([-1, 0], [5, 0], [0, 3]):
        with pytest.raises(ValueError, match="inside the heads"):
            later(prefix, starts)
    with pytest.raises(ValueError, match=r"prefix starts are .* and must be torch.int64 \[2\]"):
        DenseBlock(prefix.keys, prefix.values, prefix.offsets, torch.zeros(3, dtype=torch.int64))
