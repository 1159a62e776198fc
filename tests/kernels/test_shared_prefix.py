"""Rows that share a prefix: it is read for all of them together, and every row gets what it would get alone."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.dense_attention import CASES, DTYPES, Case, assert_close, assert_solved
from support.dense_attention import build as build_dense
from support.dense_attention import oracle as dense_oracle
from support.instruction_sets import available, needs_native
from support.packed_attention import DENSE, FORMATS, KEYS, VALUES, Layer, build
from support.packed_checks import check
from winnow.kernels import AttentionSpec, Block, DenseBlock, native


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_read_for_many_rows(name: str, isas: list[str]) -> None:
    """Queries that fill panels and a part of one, more tokens than a block, and a row that reads nothing."""
    layer = Layer([[FORMATS[name]]], [[[101, 0]]], [0] * 6 + [None], 80, 40, 11)
    check(build(layer, torch.bfloat16), isas, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sizes_of_heads(dtype: torch.dtype, isas: list[str]) -> None:
    """Whole tiles and vectors, and less than one."""
    for dim, value_dim in ((96, 128), (33, 17), (256, 48)):
        for forms in (None, (KEYS["8"], VALUES["4"])):
            check(build(Layer([[forms]], [[[70, 3]]], [0] * 33, dim, value_dim, 2), dtype), isas, dtype)


KINDS = [KEYS[name] for name in ("8", "6", "4", "3", "2", "rotated 4", "think half", "kivi 4", "spark")]


@pytest.mark.parametrize("rows", [9, 17, 29, 50])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_many_queries_of_every_kind(dtype: torch.dtype, rows: int, isas: list[str]) -> None:
    """Keys that bf16 holds and keys that it does not beside values of every kind; whole tiles and parts of them."""
    values = [DENSE, VALUES["8"], VALUES["3"], VALUES["kivi 4"]]
    for case, keys in enumerate([None, *KINDS]):
        dim, value_dim = (64, 128, 192, 256)[case % 4], (32, 96, 64, 128)[case // 2 % 4]
        forms = None if keys is None else (keys, values[case % 4])
        lengths = [[1, 97, 64], [300, 31, 0]][case % 2]
        softcap = 3.0 if case % 3 == 0 else None
        layer = Layer([[forms]], [[lengths]], [0] * rows, dim, value_dim, 1, softcap=softcap, sinks=case % 2 == 0)
        check(build(layer, dtype, case), isas, dtype)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("order", ["growing", "shrinking", "one token"])
def test_maxima_of_later_blocks(order: str, dtype: torch.dtype) -> None:
    """Sums of the blocks before are scaled anew, or left, as the largest logit demands."""
    problem = build_dense(Case(4, 1, 64, 64, [[400, 3], *[None] * 15], 4, [3] * 16), dtype)
    shared = problem.prefixes[0]
    assert isinstance(shared, DenseBlock)
    size = torch.linspace(0.1, 5, len(shared.keys))
    if order == "one token":
        size = torch.where(torch.arange(len(size)) == 333, 8.0, 0.3)
    factors = (size.flip(0) if order == "shrinking" else size)[:, None]
    shared.keys.copy_((shared.keys.float().abs() * factors).to(dtype))
    query = problem.query.abs()
    query[::2] *= -1
    problem = problem._replace(prefixes=[shared] * 16, query=query)
    out = native.NativePlan(problem.prefixes, problem.tail, problem.spec).run(problem.query)
    assert_solved(out, problem, dense_oracle(problem))


@pytest.mark.usefixtures("isa", "threads")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_more_rows_than_are_read_for_together(dtype: torch.dtype) -> None:
    """Long and skewed heads; the rows' results do not depend on threads beyond rounding."""
    problem = build_dense(Case(2, 1, 32, 32, [[3000, 37], *[None] * 140], 4, [3] * 141), dtype)
    problem = problem._replace(prefixes=[problem.prefixes[0]] * 141)
    expected = dense_oracle(problem)
    for count in (1, 5, 2):
        torch.set_num_threads(count)
        plan = native.NativePlan(problem.prefixes, problem.tail, problem.spec)
        assert_solved(plan.run(problem.query), problem, expected)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_extreme_logits_stay_finite(dtype: torch.dtype) -> None:
    problem = build_dense(Case(4, 1, 64, 64, [[400, 3], *[None] * 15], 4, [3] * 16), dtype)
    problem = problem._replace(prefixes=[problem.prefixes[0]] * 16, spec=AttentionSpec(300.0))
    out = native.NativePlan(problem.prefixes, problem.tail, problem.spec).run(problem.query)
    assert bool(out.isfinite().all())
    if dtype is torch.float32:
        assert_close(out, dense_oracle(problem), dtype)


@needs_native
def test_results_do_not_depend_on_where_memory_lies() -> None:
    """Copies of the blocks lie in another order; rows share them as before."""
    forms = [(KEYS["4"], VALUES["8"]), None]
    problem = build(Layer([forms, forms, [None]], [[[90, 7], [3, 40]]] * 2 + [[[8, 300]]], [2, 0, 1, 2, None, 0, 1, 2]))
    expected = native.NativePlan(problem.prefixes, problem.tail, problem.spec).run(problem.query)
    kept: list[Any] = []
    for _ in range(4):
        copies: dict[int, Any] = {}
        for block in reversed(problem.prefixes):
            kept.append(torch.empty(len(kept) * 1000))
            copies[id(block)] = copies.get(id(block)) or apart(block)
        kept.append(copies)
        again = [copies[id(block)] for block in problem.prefixes]
        assert torch.equal(native.NativePlan(again, problem.tail, problem.spec).run(problem.query), expected)


def apart(value: Any) -> Any:
    """The same block with copies of all its tensors."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, tuple):
        return tuple(map(apart, value))
    if not dataclasses.is_dataclass(value):
        return copy.deepcopy(value)
    fields = {each.name: apart(getattr(value, each.name)) for each in dataclasses.fields(value) if each.init}
    return type(value)(**fields)


FORMS = st.sampled_from([None, (KEYS["8"], DENSE), (KEYS["kivi 2"], VALUES["4"]), (KEYS["spark"], VALUES["filled"])])


@st.composite
def shared_layers(draw: st.DrawFn) -> Layer:
    prefixes = draw(st.lists(st.lists(FORMS, min_size=1, max_size=2), min_size=1, max_size=3))
    counts = st.lists(st.sampled_from([0, 1, 33, 100]), min_size=2, max_size=2)
    return Layer(
        prefixes,
        [[draw(counts) for _ in forms] for forms in prefixes],
        draw(st.lists(st.sampled_from([None, *range(len(prefixes))]), min_size=2, max_size=12)),
        draw(st.sampled_from([16, 40, 64])),
        draw(st.sampled_from([16, 40, 64])),
        draw(st.sampled_from([1, 2, 5, 12])),
        draw(st.integers(1, 3)),
        draw(st.integers(0, 3)),
        draw(st.sampled_from([None, 3.0])),
        draw(st.booleans()),
    )


@settings(max_examples=25, deadline=None, derandomize=True)
@given(layer=shared_layers(), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 100), copied=st.booleans())
def test_whichever_rows_share_what(layer: Layer, dtype: torch.dtype, seed: int, copied: bool) -> None:
    """All, none or some rows share a prefix; equal blocks in memory of their own are not shared."""
    used = native.isa() if available() else ""
    problem = build(layer, dtype, seed)
    if copied:
        problem = problem._replace(prefixes=[problem.prefixes[0], *map(apart, problem.prefixes[1:])])
    try:
        check(problem, available(), dtype)
    finally:
        if used:
            native.select_isa(used)


@needs_native
@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_views_share_what_they_have_in_common(data: st.DataObject, dtype: torch.dtype) -> None:
    """Every head of a view begins where it likes: rows are read for together head by head, as coalitions need it."""
    slots = data.draw(st.lists(st.sampled_from([0, 5, 70, 130]), min_size=3, max_size=3))
    rows = data.draw(st.integers(2, 20))
    group, queries, softcap = (data.draw(st.sampled_from(some)) for some in ([1, 2, 12], [1, 3], [None, 3.0]))
    case = Case(group, queries, 32, 24, [slots, *[None] * (rows - 1)], 5, [4] * rows, softcap, True)
    problem = build_dense(case, dtype)
    whole = problem.prefixes[0]
    assert whole is not None
    starts = [data.draw(st.lists(st.sampled_from([0, 3, 64]), min_size=3, max_size=3)) for _ in range(4)]
    views: list[Block | None] = [whole, None]
    views += [
        dataclasses.replace(whole, later_starts=torch.minimum(whole.offsets[:-1] + torch.tensor(each), whole.stops))
        for each in starts
    ]
    chosen = [data.draw(st.sampled_from(range(len(views)))) for _ in range(rows)]
    problem = problem._replace(prefixes=[view for i in chosen if isinstance(view := views[i], DenseBlock | None)])
    used, expected = native.isa(), dense_oracle(problem)
    try:
        for isa in available():
            native.select_isa(isa)
            plan = native.NativePlan(problem.prefixes, problem.tail, problem.spec)
            assert_solved(plan.run(problem.query), problem, expected)
    finally:
        native.select_isa(used)


@pytest.mark.usefixtures("isa", "poison")
@pytest.mark.parametrize("name", ["softcap and sinks", "sliced queries", "eight"])
def test_many_new_tokens_of_rows_that_share(name: str) -> None:
    """Chunks of a prompt, each token of which sees the prefix and the tail up to itself."""
    case = CASES[name]._replace(prefixes=[CASES[name].prefixes[0], None, None], lengths=CASES[name].lengths * 3)
    problem = build_dense(case)
    problem = problem._replace(prefixes=[problem.prefixes[0]] * 3)
    plan = native.NativePlan(problem.prefixes, problem.tail, problem.spec)
    assert_close(plan.run(problem.query), dense_oracle(problem), torch.float32)
