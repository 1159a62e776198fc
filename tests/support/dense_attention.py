"""Decode attention from dense prefixes: problems of many shapes, and their solution in float64.

The oracle shares no code with the kernels.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from support.weight_rounding import ROUNDING, assert_as_close
from winnow.kernels import AttentionSpec, DenseBlock, TailSegments

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: (0.0, 1e-5), torch.bfloat16: (2**-8, 1e-5), torch.float16: (2**-10, 1e-5)}
"""Relative and absolute: fp32 as computed, the others as rounded on output."""


class Case(NamedTuple):
    """Sizes of one layer; a row's prefix is its slots per head, or None."""

    group: int
    queries: int
    dim: int
    value_dim: int
    prefixes: list[list[int] | None]
    capacity: int
    lengths: list[int]
    softcap: float | None = None
    sinks: bool = False

    @property
    def heads(self) -> int:
        """KV heads: those of any prefix, or two."""
        return next((len(slots) for slots in self.prefixes if slots is not None), 2)


class Problem(NamedTuple):
    """Random tensors for a case."""

    query: Tensor
    prefixes: list[DenseBlock | None]
    tail: TailSegments
    spec: AttentionSpec


def build(case: Case, dtype: torch.dtype = torch.float32, seed: int = 0) -> Problem:
    """Tensors of a case. The tail is NaN behind its valid length: reading it must show."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    rows, heads = len(case.prefixes), case.heads
    prefixes: list[DenseBlock | None] = []
    for slots in case.prefixes:
        if slots is None:
            prefixes.append(None)
            continue
        offsets = torch.tensor([0, *slots]).cumsum(0)
        total = sum(slots)
        prefixes.append(DenseBlock(random(total, case.dim), random(total, case.value_dim), offsets))
    keys, values = random(rows, heads, case.capacity, case.dim), random(rows, heads, case.capacity, case.value_dim)
    for row, length in enumerate(case.lengths):
        keys[row, :, length:] = math.nan
        values[row, :, length:] = math.nan
    # As transformers gives it: a transposed view of [R, Q, Hq, D].
    query = random(rows, case.queries, heads * case.group, case.dim).transpose(1, 2)
    sinks = torch.randn(heads * case.group, generator=generator) if case.sinks else None
    tail = TailSegments(keys, values, torch.tensor(case.lengths))
    return Problem(query, prefixes, tail, AttentionSpec(case.dim**-0.5, case.softcap, sinks))


def oracle(problem: Problem) -> Tensor:
    """[R, Q, Hq, Dv] in float64, one query at a time."""
    query, prefixes, tail, spec = problem
    rows, query_heads, queries, _ = query.shape
    heads = tail.keys.shape[1]
    out = torch.zeros(rows, queries, query_heads, tail.values.shape[-1], dtype=torch.float64)
    for row in range(rows):
        prefix = prefixes[row]
        for query_head in range(query_heads):
            head = query_head // (query_heads // heads)
            keys, values = [], []
            if prefix is not None:
                start, end = int(prefix.starts[head]), int(prefix.stops[head])
                keys, values = [prefix.keys[start:end]], [prefix.values[start:end]]
            for i in range(queries):
                seen = max(0, int(tail.lengths[row]) - (queries - 1 - i))
                k = torch.cat([*keys, tail.keys[row, head, :seen]]).double()
                v = torch.cat([*values, tail.values[row, head, :seen]]).double()
                if not len(k):
                    continue
                logits = spec.scaling * (k @ query[row, query_head, i].double())
                if spec.softcap is not None:
                    logits = spec.softcap * torch.tanh(logits / spec.softcap)
                if spec.sinks is not None:
                    logits = torch.cat([logits, spec.sinks[query_head : query_head + 1].double()])
                weights = torch.softmax(logits, 0)[: len(k)]
                out[row, i, query_head] = weights @ v
    return out


def widened(problem: Problem) -> Problem:
    """The same numbers in fp32: what a kernel computes before it rounds its output."""
    prefixes = [p and DenseBlock(p.keys.float(), p.values.float(), p.offsets) for p in problem.prefixes]
    tail = TailSegments(problem.tail.keys.float(), problem.tail.values.float(), problem.tail.lengths)
    return Problem(problem.query.float(), prefixes, tail, problem.spec)


def of_sizes(problem: Problem) -> Problem:
    """The same with values as large, but positive."""
    prefixes = [p and DenseBlock(p.keys, p.values.abs(), p.offsets, p.starts) for p in problem.prefixes]
    tail = TailSegments(problem.tail.keys, problem.tail.values.abs(), problem.tail.lengths)
    return problem._replace(prefixes=prefixes, tail=tail)


def assert_close(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    relative, absolute = TOLERANCE[dtype]
    assert actual.dtype == dtype
    assert actual.is_contiguous()
    torch.testing.assert_close(actual.double(), expected, rtol=relative, atol=absolute)


def assert_solved(actual: Tensor, problem: Problem, expected: Tensor) -> None:
    """Assert that what the native kernels give for a problem is its solution, as precisely as they promise."""
    assert actual.dtype == problem.query.dtype
    assert actual.is_contiguous()

    def by_rounding() -> Tensor:
        return ROUNDING * (oracle(of_sizes(problem)) + expected.abs())  # of numerators, and of what divides them

    assert_as_close(actual, expected, TOLERANCE[actual.dtype], by_rounding)


CASES = {
    "mha": Case(1, 1, 64, 64, [[70, 3, 0, 129]], 20, [17]),
    "pairs": Case(2, 1, 128, 128, [[5, 300]], 8, [8]),
    "three": Case(3, 2, 80, 80, [[33, 0, 64]], 10, [2]),
    "four": Case(4, 1, 128, 128, [[1000, 20, 1, 777]], 64, [33]),
    "seven": Case(7, 1, 96, 64, [[90, 41]], 30, [30]),
    "eight": Case(8, 5, 64, 128, [[100, 17]], 40, [11]),
    "sixteen": Case(16, 1, 192, 128, [[65, 64]], 16, [3]),
    "verify": Case(4, 17, 16, 16, [[40, 80]], 60, [45]),
    "odd sizes": Case(3, 2, 24, 33, [[19, 31]], 7, [6]),
    "largest": Case(2, 1, 256, 256, [[50, 31]], 4, [1]),
    "several rows": Case(4, 2, 64, 64, [[9, 30], None, [0, 0], [200, 1]], 50, [50, 7, 2, 0]),
    "tail only": Case(2, 1, 64, 64, [None, None], 70, [70, 1]),
    "prefix only": Case(2, 3, 64, 64, [[40, 9], [3, 3]], 0, [0, 0]),
    "nothing at all": Case(2, 3, 32, 32, [None, [0, 4]], 5, [1, 0]),
    "softcap": Case(2, 2, 64, 64, [[40, 130]], 9, [9], softcap=1.5),
    "weak softcap": Case(1, 1, 64, 64, [[40, 130]], 9, [9], softcap=50.0),
    "sinks": Case(4, 2, 64, 64, [[40, 3], None], 9, [9, 1], sinks=True),
    "softcap and sinks": Case(8, 1, 64, 64, [[400, 3]], 9, [5], softcap=5.0, sinks=True),
    "sliced queries": Case(3, 190, 32, 16, [[40, 0]], 210, [201]),
}


@cache
def solved(name: str, dtype: torch.dtype) -> tuple[Problem, Tensor]:
    """A case of the table with its answer."""
    problem = build(CASES[name], dtype)
    return problem, oracle(problem)


@st.composite
def any_case(draw: st.DrawFn) -> Case:
    rows, heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    slots = st.one_of(st.none(), st.lists(st.integers(0, 70), min_size=heads, max_size=heads))
    prefixes = draw(st.lists(slots, min_size=rows, max_size=rows))
    if all(prefix is None for prefix in prefixes):
        prefixes[0] = [0] * heads
    capacity = draw(st.integers(0, 40))
    return Case(
        group=draw(st.integers(1, 17)),
        queries=draw(st.integers(1, 6)),
        dim=draw(st.integers(16, 140)),
        value_dim=draw(st.integers(16, 140)),
        prefixes=prefixes,
        capacity=capacity,
        lengths=draw(st.lists(st.integers(0, capacity), min_size=rows, max_size=rows)),
        softcap=draw(st.sampled_from([None, 3.0])),
        sinks=draw(st.booleans()),
    )
