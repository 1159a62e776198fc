"""Decode attention against a float64 oracle that shares no code with the kernels."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from winnow.kernels import AttentionSpec, DecodePlan, PrefixBlock, TailSegments, attend, backend, native
from winnow.kernels.reference import ReferencePlan

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
    prefixes: list[PrefixBlock | None]
    tail: TailSegments
    spec: AttentionSpec


def build(case: Case, dtype: torch.dtype = torch.float32, seed: int = 0) -> Problem:
    """Tensors of a case. The tail is NaN behind its valid length: reading it must show."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    rows, heads = len(case.prefixes), case.heads
    prefixes: list[PrefixBlock | None] = []
    for slots in case.prefixes:
        if slots is None:
            prefixes.append(None)
            continue
        offsets = torch.tensor([0, *slots]).cumsum(0)
        total = sum(slots)
        prefixes.append(PrefixBlock(random(total, case.dim), random(total, case.value_dim), offsets))
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


@cache
def solved(name: str, dtype: torch.dtype) -> tuple[Problem, Tensor]:
    """A case of the table with its answer."""
    problem = build(CASES[name], dtype)
    return problem, oracle(problem)


def widened(problem: Problem) -> Problem:
    """The same numbers in fp32: what a kernel computes before it rounds its output."""
    prefixes = [p and PrefixBlock(p.keys.float(), p.values.float(), p.offsets) for p in problem.prefixes]
    tail = TailSegments(problem.tail.keys.float(), problem.tail.values.float(), problem.tail.lengths)
    return Problem(problem.query.float(), prefixes, tail, problem.spec)


def assert_close(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    relative, absolute = TOLERANCE[dtype]
    assert actual.dtype == dtype
    assert actual.is_contiguous()
    torch.testing.assert_close(actual.double(), expected, rtol=relative, atol=absolute)


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
    "sliced queries": Case(3, 50, 32, 16, [[40, 0]], 70, [61]),
}


def available(name: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if native.library() is None:
            return False
    used = native.isa()
    try:
        native.select_isa(name)
    except ValueError:
        return False
    native.select_isa(used)
    return True


needs_native = pytest.mark.skipif(not available("portable"), reason="the native library was not built")


@pytest.fixture(params=["avx512bf16", "avx512vnni", "avx512", "avx2", "portable"])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every instruction set that this machine has, in turn."""
    if not available(request.param):
        pytest.skip(f"no {request.param} here")
    used = native.isa()
    native.select_isa(request.param)
    yield request.param
    native.select_isa(used)


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory is NaN, so that outputs never written show."""
    empty_like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda like: empty_like(like).fill_(math.nan))


@pytest.fixture
def threads() -> Iterator[None]:
    """Restores the thread count."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("isa", "poison")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_native_matches_oracle(name: str, dtype: torch.dtype) -> None:
    problem, expected = solved(name, dtype)
    plan = native.NativePlan(problem.prefixes, problem.tail, problem.spec)
    assert_close(plan.run(problem.query), expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_reference_matches_oracle(name: str, dtype: torch.dtype) -> None:
    problem, expected = solved(name, dtype)
    plan = ReferencePlan(problem.prefixes, problem.tail, problem.spec)
    assert_close(plan.run(problem.query), expected, dtype)


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


@pytest.mark.usefixtures("isa", "poison")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=any_case(), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 100))
def test_native_agrees_with_reference_on_any_shape(case: Case, dtype: torch.dtype, seed: int) -> None:
    problem = build(case, dtype, seed)
    query, *parts = problem
    wide_query, *wide_parts = widened(problem)
    expected = ReferencePlan(*wide_parts).run(wide_query).double()
    assert_close(native.NativePlan(*parts).run(query), expected, dtype)


@pytest.mark.usefixtures("isa", "threads")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_many_chunks_and_threads(dtype: torch.dtype) -> None:
    """Long and skewed heads: the work is cut, spread and merged."""
    problem = build(Case(4, 2, 64, 64, [[9000, 37, 0, 2500]], 40, [21], sinks=True), dtype)
    expected = oracle(problem)
    plan = native.NativePlan(problem.prefixes, problem.tail, problem.spec)
    for count in (1, 2, 5, 3):
        torch.set_num_threads(count)
        assert_close(plan.run(problem.query), expected, dtype)


@pytest.mark.usefixtures("isa")
def test_extreme_logits_stay_finite() -> None:
    problem = build(CASES["four"])
    problem = problem._replace(spec=AttentionSpec(scaling=300.0))
    out = native.NativePlan(problem.prefixes, problem.tail, problem.spec).run(problem.query)
    assert_close(out, oracle(problem), torch.float32)


@needs_native
@pytest.mark.parametrize("softcap", [None, 0.01, 2.0, 30.0])
def test_exponentials_are_accurate(softcap: float | None) -> None:
    """Two slots: the output is a logistic function of one logit."""
    logits = torch.cat([torch.linspace(-20, 20, 4001), torch.linspace(-0.1, 0.1, 401)])
    keys = torch.zeros(2, 16)
    keys[1, 0] = 1.0
    prefix = PrefixBlock(keys, torch.eye(2, 16), torch.tensor([0, 2]))
    tail = TailSegments(torch.empty(1, 1, 0, 16), torch.empty(1, 1, 0, 16), torch.zeros(1, dtype=torch.int64))
    query = torch.zeros(1, len(logits), 1, 16)
    query[0, :, 0, 0] = logits
    out = attend(query, [prefix], tail, AttentionSpec(1.0, softcap))[0, 0, :, 1].double()
    capped = logits.double() if softcap is None else softcap * torch.tanh(logits.double() / softcap)
    torch.testing.assert_close(out, torch.sigmoid(capped), rtol=5e-6, atol=0)


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


def later(prefix: PrefixBlock, starts: list[int]) -> PrefixBlock:
    """The same slots, of which head h reads those from its own starts[h] on."""
    return PrefixBlock(prefix.keys, prefix.values, prefix.offsets, prefix.offsets[:-1] + torch.tensor(starts))


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
    for plan_type in (native.NativePlan, ReferencePlan):
        assert_close(plan_type(rows, problem.tail, problem.spec).run(problem.query), oracle(problem), dtype)


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
    cut = PrefixBlock(
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
    with pytest.raises(ValueError, match=r"int64 CPU tensor \[2\]"):
        PrefixBlock(prefix.keys, prefix.values, prefix.offsets, torch.zeros(3, dtype=torch.int64))


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


@needs_native
def test_concurrent_calls() -> None:
    """ctypes releases the GIL: calls from several threads overlap, and the pool serves one of them at a time."""
    problems = [build(Case(4, 1, 64, 64, [[3000, 500]], 8, [8]), seed=seed) for seed in range(4)]
    plans = [native.NativePlan(problem.prefixes, problem.tail, problem.spec) for problem in problems]
    expected = [plan.run(problem.query) for plan, problem in zip(plans, problems, strict=True)]
    wrong: list[int] = []

    def repeat(index: int) -> None:
        for _ in range(100):
            if not torch.equal(plans[index].run(problems[index].query), expected[index]):
                wrong.append(index)

    workers = [threading.Thread(target=repeat, args=(index,)) for index in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@needs_native
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork_gets_its_own_workers() -> None:
    problem = build(Case(4, 1, 64, 64, [[9000, 500]], 8, [8]))
    plan = native.NativePlan(problem.prefixes, problem.tail, problem.spec)
    expected = plan.run(problem.query).tolist()
    child = os.fork()
    if child == 0:
        os._exit(0 if all(plan.run(problem.query).tolist() == expected for _ in range(5)) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert plan.run(problem.query).tolist() == expected


@needs_native
def test_process_ends_and_environment_chooses_isa() -> None:
    script = (
        "import torch; from winnow.kernels import *; torch.set_num_threads(3)\n"
        "prefix = PrefixBlock(torch.ones(9000, 64), torch.ones(9000, 64), torch.tensor([0, 9000]))\n"
        "tail = TailSegments(torch.ones(1, 1, 1, 64), torch.ones(1, 1, 1, 64), torch.ones(1, dtype=torch.int64))\n"
        "out = attend(torch.ones(1, 2, 1, 64), [prefix], tail, AttentionSpec(0.1))\n"
        "print(backend(), float(out.min()), float(out.max()))"
    )
    source = str(Path(native.__file__).parents[2])
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "WINNOW_ISA": "portable", "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert run.stdout.strip() == "native (portable, 3 threads) 1.0 1.0"


@pytest.fixture
def unloaded() -> Iterator[None]:
    """The library is looked for anew, in the test and after it."""
    native.library.cache_clear()
    yield
    native.library.cache_clear()


@pytest.mark.usefixtures("unloaded")
@pytest.mark.parametrize("broken", ["absent", "not a library", "other ABI"])
def test_without_library_one_warning_and_right_results(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if broken == "other ABI":
        monkeypatch.setattr(native, "ABI", native.ABI + 1)
    else:
        monkeypatch.setenv("WINNOW_NATIVE_LIBRARY", str(tmp_path / "library.so"))
    if broken == "not a library":
        (tmp_path / "library.so").write_bytes(b"text")
    problem = build(CASES["several rows"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert_close(attend(*problem), oracle(problem), torch.float32)
    assert len(caught) == 1
    assert "WINNOW_NATIVE_LIBRARY" in str(caught[0].message)
    assert backend() == "torch reference"


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
    wide = PrefixBlock(prefix.keys.double(), prefix.values.double(), prefix.offsets)
    tail = TailSegments(problem.tail.keys.double(), problem.tail.values.double(), problem.tail.lengths)
    out = attend(problem.query.double(), [wide], tail, problem.spec)
    torch.testing.assert_close(out, oracle(problem), rtol=0, atol=1e-5)


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
        PrefixBlock(prefix.keys, prefix.values, prefix.offsets + 1)
    with pytest.raises(ValueError, match="contiguous"):
        PrefixBlock(prefix.keys.t().contiguous().t(), prefix.values, prefix.offsets)
