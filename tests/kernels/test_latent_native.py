"""Heads that share latents, by the compiled kernels: against float64 in every instruction set, and what they refuse."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.dense_attention import DTYPES
from support.instruction_sets import needs_native
from support.latent_attention import Forms, Layer, Problem, assert_solved, build, check, solved
from support.packed_attention import DENSE, KEYS, VALUES
from support.turns import each_value
from support.views import random_view
from winnow.cache.host_graph import HostGraph
from winnow.kernels import AttentionSpec, DenseBlock, TailSegments, native
from winnow.kernels.head_matrices import HeadMatrices
from winnow.kernels.native import NativePlan
from winnow.kernels.native_args import DecodeArgs, LatentArgs
from winnow.kernels.step import DecodeStep
from winnow.select import everything
from winnow.store import Bits, Packed
from winnow.store.precision import Kivi, Precision

pytestmark = needs_native

BF16 = torch.bfloat16
PROPERTY = settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

LAYERS = {
    "of DeepSeek": Layer([[None]], [[133]], [0], [5], 512, 64, 16, 128, 128),
    "of DeepSeek, twenty heads": Layer([[None]], [[70]], [0], [1], 512, 64, 20, 192, 256),
    "of DeepSeek, new tokens": Layer([[None]], [[40]], [0], [9], 512, 64, 5, 128, 128, queries=4, capacity=9),
    "one of everything": Layer([[None]], [[1]], [0], [1], 1, 1, 1, 1, 1, capacity=1),
    "odd": Layer([[None]], [[37]], [0], [3], 33, 5, 7, 9, 3, queries=2),
    "forty heads": Layer([[None], [None]], [[9], [50]], [1, 0, None], [2, 8, 0], 96, 32, 40, 31, 33),
    "many rows of matrices": Layer([[None]], [[20]], [0], [2], 40, 8, 2, 1030, 1100),
    "more channels than pairs take": Layer([[None]], [[40]], [0], [2], 1024, 32, 3, 16, 16),
    "rows that share": Layer([[None]], [[101]], [0, 0, None, 0, 0], [3, 0, 4, 8, 1], 64, 32, 11, queries=3),
    "tail only": Layer([], [], [None, None], [70, 1], 72, 24, 3, capacity=80),
    "prefix only": Layer([[None]], [[40]], [0, 0], [0, 0], 64, 32, 9, capacity=0, queries=2),
    "nothing at all": Layer([[None]], [[0]], [0, None], [1, 0], 64, 32, 4, queries=3),
    "softcap": Layer([[None]], [[70]], [0], [8], 64, 32, 9, queries=2, softcap=1.5),
    "sinks": Layer([[None]], [[70]], [0, None], [8, 0], 64, 32, 12, queries=2, sinks=True),
    "softcap and sinks": Layer([[None]], [[300]], [0], [5], 160, 64, 17, softcap=5.0, sinks=True),
    "long prompt": Layer([[None]], [[33]], [0], [75], 64, 32, 5, queries=70, capacity=80),
    "longer prompt than tail": Layer([], [], [None, None], [3, 64], 40, 7, 20, queries=64, capacity=64, sinks=True),
    "slices of shared rows": Layer([[None]], [[120]], [0, 0, 0], [70, 75, 72], 32, 32, 8, queries=70, capacity=75),
}


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_attended_to_as_defined(name: str, dtype: torch.dtype, bits: int, isas: list[str]) -> None:
    check(build(LAYERS[name]._replace(bits=bits), dtype), isas)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_latents_that_are_keys_and_values_themselves(name: str, dtype: torch.dtype, isas: list[str]) -> None:
    """Matrices that choose latents: no rounding of what asks for them hides an error of logits."""
    check(build(LAYERS[name]._replace(chosen=True), dtype, seed=1), isas)


WHOLE = [name for name, form in KEYS.items() if form.kept == "all"]
OF_ROTATED = [*(name for name, form in VALUES.items() if form.kept == "all"), "dense"]
FORMS: dict[str, Forms] = {
    **{f"latents {name}": (KEYS[name], VALUES.get(name, VALUES["8"])) for name in WHOLE},
    **{f"rotated {name}": (KEYS["8"], VALUES.get(name, DENSE)) for name in OF_ROTATED},
    "latents as they are": (DENSE, VALUES["4"]),
}


@pytest.mark.parametrize("name", FORMS)
def test_formats_stand_for_what_they_recover_to(name: str, isas: list[str]) -> None:
    """Whole vectors of channels and parts of one, several blocks of tokens, and a row that reads nothing."""
    sizes = [(64, 32, 5, [0]), (40, 20, 18, [0, None, 0]), (33, 7, 3, [0])]
    for case, (dim, rotated, heads, rows) in enumerate(sizes):
        layer = Layer([[FORMS[name]]], [[[101, 7, 192][case]]], rows, [3] * len(rows), dim, rotated, heads)
        check(build(layer._replace(chosen=case == 0, queries=1 + case), DTYPES[case - 1], seed=case), isas)


HALVES = [torch.bfloat16, torch.float16]
INTEGERS = [name for name in WHOLE if not KEYS[name].grouped]
OF_ROTATED_INTEGERS = [name for name in OF_ROTATED if name == "dense" or not VALUES[name].grouped]


@st.composite
def layers_of_integers(draw: st.DrawFn) -> Layer:
    """Latents in whole blocks of integers, which some instruction sets multiply as such, and any number of queries."""
    form = KEYS[draw(st.sampled_from(INTEGERS))], VALUES.get(draw(st.sampled_from(OF_ROTATED_INTEGERS)), DENSE)
    rows = draw(st.sampled_from([[0], [0, 0], [0, None, 0]]))
    return Layer(
        [[form]],
        [[draw(st.sampled_from([1, 3, 15, 31, 32, 33, 127, 128, 129, 131, 300]))]],
        rows,
        [draw(st.integers(0, 8)) for _ in rows],
        draw(st.sampled_from([16, 32, 64, 96, 128, 192, 512])),
        draw(st.sampled_from([16, 32, 64])),
        draw(st.sampled_from([1, 3, 4, 5, 7, 8, 9, 12, 13, 16, 17, 20, 29])),
        queries=draw(st.sampled_from([1, 1, 1, 2, 5])),
        softcap=draw(st.sampled_from([None, 3.0])),
        sinks=draw(st.booleans()),
        chosen=draw(st.booleans()),
    )


@PROPERTY
@given(layer=layers_of_integers(), dtype=st.sampled_from(HALVES), seed=st.integers(0, 100))
def test_integers_are_attended_to_as_defined(layer: Layer, dtype: torch.dtype, seed: int, isas: list[str]) -> None:
    check(build(layer, dtype, seed), isas)


@pytest.mark.parametrize(
    ("name", "dtype"), each_value(["8", "rotated, centered and smoothed 4", "6", "4 by 64"], HALVES)
)
def test_integers_of_deepseek(name: str, dtype: torch.dtype, isas: list[str]) -> None:
    """Its sizes and those of larger models: one block of queries and several, one chunk of tokens and several."""
    for heads, slots in ((16, 2100), (20, 133), (128, 70)):
        layer = Layer([[(KEYS[name], VALUES["rotated 4"])]], [[slots]], [0], [3], 512, 64, heads, 32, 32)
        check(build(layer, dtype, seed=heads), isas)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_integers_beside_an_outlier(dtype: torch.dtype, isas: list[str]) -> None:
    """A channel of a query, and a latent, that are much larger than all others, which are rounded relative to them."""
    problem = build(Layer([[(KEYS["8"], VALUES["8"])]], [[200]], [0], [3], 64, 32, 16, chosen=True), dtype)
    problem.query[..., 5] *= 100
    problem.query[..., -7] *= 100
    problem.prefixes[0].keys.entries.scales[77] *= 50
    check(problem._replace(spec=AttentionSpec(0.002)), isas)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_chunks_of_long_prefixes_are_merged(dtype: torch.dtype, isas: list[str]) -> None:
    """Chunks depend on threads; results do not beyond rounding."""
    forms: list[Forms] = [None, (KEYS["8"], VALUES["8"])]
    for layer in (
        Layer([[None]], [[3000]], [0], [40], 512, 64, 3, capacity=40, chosen=True),
        Layer([forms], [[1500, 1400]], [0, 0], [2, 40], 96, 32, 9, capacity=40, sinks=True),
    ):
        problem = build(layer, dtype)
        solution = solved(problem)
        for isa in isas:
            native.select_isa(isa)
            plan = problem.plan()
            for count in (1, 3, 2):
                torch.set_num_threads(count)
                assert_solved(plan.run(problem.query), solution, f"{isa}, {count} threads")


@pytest.mark.usefixtures("isa", "threads")
@pytest.mark.parametrize("bits", [16, 8])
def test_heads_are_the_same_in_any_thread(bits: int) -> None:
    """Latents too few for several chunks: threads have heads of their own, of which there may be fewer."""
    for heads in (1, 2, 20):
        problem = build(Layer([[None]], [[30]], [0], [3], 96, 32, heads, bits=bits), BF16)
        plan = problem.plan()
        outputs = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            outputs.append(plan.run(problem.query))
        assert all(torch.equal(outputs[0], each) for each in outputs[1:])


@pytest.mark.parametrize("precision", [Bits(8), Bits(4), Bits(3), Bits(4, group=64), Bits(k=8, v=4), Kivi(4)], ids=str)
def test_caches_of_few_bits_are_read_as_they_come_back(precision: Precision, isas: list[str]) -> None:
    view = random_view(heads=1, length=77, dim=64, dtype=BF16)
    block = Packed(precision=precision).pack(view, everything(view.keys), window=0)
    problem = build(Layer([], [], [None, None], [3, 1], 64, 64, 5, chosen=True), BF16)
    problem = problem._replace(prefixes=[block, block])
    check(problem, isas)
    # The oracle reads what is written on its own: the same that the block gives back, but for rounding.
    dense = DenseBlock(*(rows.to(BF16) for rows in block.recover(torch.arange(77))), torch.tensor([0, 77]))
    again = solved(problem._replace(prefixes=[dense, dense])).expected
    torch.testing.assert_close(again, solved(problem).expected, rtol=0, atol=0.03)


PARTS: st.SearchStrategy[Forms] = st.none() | st.tuples(st.sampled_from(WHOLE), st.sampled_from(OF_ROTATED)).map(
    lambda names: (KEYS[names[0]], VALUES.get(names[1], DENSE))
)


@st.composite
def any_layer(draw: st.DrawFn) -> Layer:
    prefixes = draw(st.lists(st.lists(PARTS, min_size=1, max_size=3), max_size=2))
    slots = st.sampled_from([0, 1, 2, 5, 12, 31, 33, 96, 97, 130])
    rows = draw(st.lists(st.sampled_from([None, *range(len(prefixes))]), min_size=1, max_size=4))
    capacity = draw(st.integers(0, 40))
    queries = draw(st.integers(1, 3) | st.integers(1, 70))
    heads = draw(st.integers(1, 40) | st.sampled_from([16, 20])) if queries < 9 else draw(st.integers(1, 9))
    return Layer(
        prefixes,
        [[draw(slots) for _ in forms] for forms in prefixes],
        rows,
        [draw(st.integers(0, capacity)) for _ in rows],
        draw(st.integers(1, 70) | st.sampled_from([96, 128, 160, 200])),
        draw(st.integers(1, 5) | st.sampled_from([17, 32, 48, 64])),
        heads,
        draw(st.integers(1, 40) | st.sampled_from([64, 128])),
        draw(st.integers(1, 40) | st.sampled_from([64, 128])),
        queries,
        capacity,
        draw(st.sampled_from([None, 3.0])),
        draw(st.booleans()),
        draw(st.sampled_from([16, 8])),
        draw(st.booleans()),
    )


@PROPERTY
@given(layer=any_layer(), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 100))
def test_any_layer_is_attended_to_as_defined(layer: Layer, dtype: torch.dtype, seed: int, isas: list[str]) -> None:
    check(build(layer, dtype, seed), isas)


def in_heads(query: Tensor) -> Tensor:
    return query.contiguous()


def among_others(query: Tensor) -> Tensor:
    """Channels, tokens and heads that lie between others."""
    rows, heads, tokens, dim = query.shape
    wide = torch.full((heads + 1, rows + 2, tokens + 1, dim + 3), math.nan).to(query.dtype)
    inside = wide[1:, 1:-1, :-1, 2:-1].transpose(0, 1)
    return inside.copy_(query)


def every_other(query: Tensor) -> Tensor:
    """Channels that do not lie side by side."""
    return query.repeat_interleave(2, dim=-1)[..., ::2]


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("laid", [in_heads, among_others, every_other], ids=["in heads", "among others", "every other"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_queries_lie_as_they_like(dtype: torch.dtype, laid: Callable[[Tensor], Tensor]) -> None:
    problem = build(Layer([[None]], [[20]], [0, None], [4, 6], 64, 32, 6, queries=3), dtype)
    plan = problem.plan()
    other = laid(problem.query)
    assert other.stride() != problem.query.stride()
    assert torch.equal(plan.run(other), plan.run(problem.query))


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_logits_choose_one_token(dtype: torch.dtype) -> None:
    """Logits of hundreds, whose weights all but vanish, in blocks of dense tokens and of packed ones."""
    for forms in (None, (KEYS["8"], VALUES["8"])):
        layer = Layer([[forms]], [[300]], [0, 0], [3, 7], 64, 32, 9, chosen=True)
        problem = build(layer, dtype)
        problem = problem._replace(query=40 * problem.query)
        assert_solved(problem.plan().run(problem.query), solved(problem))


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_extreme_logits_stay_finite(dtype: torch.dtype) -> None:
    problem = build(Layer([[None, (KEYS["8"], VALUES["8"])]], [[100, 100]], [0], [3], 64, 32, 9), dtype)
    problem = problem._replace(spec=AttentionSpec(3000.0))
    assert bool(problem.plan().run(problem.query).isfinite().all())


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("order", ["growing", "shrinking"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_maxima_of_later_blocks(dtype: torch.dtype, order: str) -> None:
    """Sums of the blocks before are scaled anew, or left, as the largest logit demands."""
    problem = build(Layer([[None]], [[400]], [0, 0], [3, 3], 64, 32, 9, chosen=True), dtype)
    latents, rotated = problem.prefixes[0].keys, problem.prefixes[0].values
    size = torch.linspace(0.1, 8, len(latents))[:, None]
    for each in (latents, rotated):
        each.copy_(each.abs() * (size if order == "growing" else size.flip(0)))
    problem = problem._replace(query=problem.query.abs())
    assert_solved(problem.plan().run(problem.query), solved(problem))


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("forms", [None, (KEYS["8"], VALUES["8"])], ids=["dense", "packed"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_broken_query(dtype: torch.dtype, forms: Forms) -> None:
    """A head and token that is not a number, and no other."""
    problem = build(Layer([[forms]], [[70]], [0, 0], [3, 2], 64, 32, 9, queries=2), dtype)
    plan = problem.plan()
    expected = plan.run(problem.query)
    for channel in (5, -1):
        query = problem.query.clone()
        query[1, 4, 1, channel] = math.nan
        found = plan.run(query)
        assert found[1, 1, 4].isnan().all()
        found[1, 1, 4] = expected[1, 1, 4]
        assert torch.equal(found, expected)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", ["think half", "think 8", "spark", "spark 8", "ragged", "filled"])
@pytest.mark.parametrize("bits", [16, 8])
def test_latents_or_rotated_keys_that_lack_some_are_refused(name: str, bits: int) -> None:
    forms = (KEYS["8"], VALUES[name]) if name == "filled" else (KEYS[name], DENSE)
    problem = build(Layer([[None, forms]], [[5, 40]], [0], [3], bits=bits))
    with pytest.raises(ValueError, match="sizes of a block contradict each other"):
        problem.plan().run(problem.query)


WEIGHT = torch.randn(4, 32, 64)
LEVELS, SCALES = torch.ones(4, 32, 64, dtype=torch.int8), torch.ones(4, 32)
DO_NOT_FIT = {
    "other channels": HeadMatrices(WEIGHT[..., :63], 16),
    "no plain channels": HeadMatrices(WEIGHT, 0),
    "no outputs": HeadMatrices(WEIGHT, 32),
    "fewer scales": HeadMatrices(LEVELS, 16, SCALES[:, :31]),
    "scales of heads": HeadMatrices(LEVELS, 16, SCALES[:, 0]),
}
ARE_NOT_READ = {
    "another dtype": HeadMatrices(WEIGHT.to(BF16), 16),
    "whole numbers without scales": HeadMatrices(LEVELS, 16),
    "scales of what has no 8 bits": HeadMatrices(WEIGHT, 16, SCALES),
    "scales of another dtype": HeadMatrices(LEVELS, 16, SCALES.double()),
    "rows in pieces": HeadMatrices(WEIGHT.repeat(1, 1, 2)[..., ::2], 16),
    "heads in pieces": HeadMatrices(WEIGHT.transpose(0, 1).contiguous().transpose(0, 1), 16),
    "scales in pieces": HeadMatrices(LEVELS, 16, SCALES.T.contiguous().T),
    "another device": HeadMatrices(WEIGHT.to("meta"), 16),
}


@pytest.mark.parametrize("name", DO_NOT_FIT)
def test_matrices_that_do_not_fit_are_refused(name: str) -> None:
    problem = build(Layer([[None]], [[5]], [0], [3]))
    with pytest.raises(ValueError, match="do not fit latents of 64 channels"):
        problem._replace(matrices=DO_NOT_FIT[name]).plan()


@pytest.mark.parametrize("name", ARE_NOT_READ)
def test_matrices_that_are_not_read_are_refused(name: str) -> None:
    problem = build(Layer([[None]], [[5]], [0], [3]))
    assert not ARE_NOT_READ[name].are_read_with(problem.tail.keys)
    with pytest.raises(ValueError, match=r"not for latents in torch.float32, or lie in pieces"):
        problem._replace(matrices=ARE_NOT_READ[name]).plan()


def test_latents_of_several_heads_are_refused() -> None:
    problem = build(Layer([], [], [None], [3]))
    several = TailSegments(*(each.repeat(1, 2, 1, 1) for each in problem.tail[:2]), problem.tail.lengths)
    with pytest.raises(ValueError, match="do not fit latents"):
        problem._replace(tail=several).plan()


def test_queries_that_do_not_fit_are_refused() -> None:
    problem = build(Layer([[None]], [[5]], [0], [3], sinks=True))
    plan, query = problem.plan(), problem.query
    for other in (query[:, :3], query.repeat(1, 2, 1, 1), query[..., :-1], query[..., :32], query.repeat(2, 1, 1, 1)):
        with pytest.raises(ValueError, match="does not fit 1 rows, 1 KV heads and head size 48"):
            plan.run(other)
    with pytest.raises(ValueError, match=r"query is torch.bfloat16"):
        plan.run(query.to(BF16))
    with pytest.raises(ValueError, match="query is on meta"):
        plan.run(query.to("meta"))
    few = problem._replace(spec=AttentionSpec(1.0, None, torch.zeros(3))).plan()
    with pytest.raises(ValueError, match="3 sinks for 4 query heads"):
        few.run(query)


def test_tail_lengths_beyond_the_capacity_are_refused() -> None:
    problem = build(Layer([[None]], [[5]], [0], [3]))
    plan = problem.plan()
    for length in (9, -1):
        problem.tail.lengths[0] = length
        with pytest.raises(ValueError, match="tail length"):
            plan.run(problem.query)


@pytest.mark.parametrize(
    "wrong", [{"bits": 4}, {"bits": 0}, {"plain_dim": 0}, {"output_dim": -1}, {"weight": None}, {"bits": 8}], ids=str
)
def test_the_library_refuses_matrices_that_there_are_not(wrong: dict[str, int | None]) -> None:
    """As Python checks them, the library is asked itself: 8 bits have scales."""
    problem = build(Layer([[None]], [[5]], [0], [3]))
    plan = problem.plan()
    args = plan.arguments(problem.query.contiguous())
    latent = LatentArgs.from_address(args.latent)
    for name, value in wrong.items():
        setattr(latent, name, value)
    with pytest.raises(ValueError, match="contradict each other"):
        plan.run(problem.query)


def test_the_library_refuses_several_heads() -> None:
    problem = build(Layer([], [], [None], [3]))
    plan = problem.plan()
    assert isinstance(plan._args, DecodeArgs)
    plan._args.heads = 2
    with pytest.raises(ValueError, match="contradict each other"):
        plan.run(problem.query)


class Planned:
    """A plan of a layer as caches have it."""

    def __init__(self, kernels: NativePlan) -> None:
        self.kernels = kernels


def stepped(bits: int, dtype: torch.dtype) -> Problem:
    return build(Layer([[None]], [[20]], [0, None], [2, 0], heads=6, bits=bits), dtype)


def appended(problem: Problem, keys: Tensor, values: Tensor) -> None:
    """A token behind those of every row, as tails take it."""
    tail = problem.tail
    for row, length in enumerate(tail.lengths.tolist()):
        tail.keys[row, :, length], tail.values[row, :, length] = keys[row, :, 0], values[row, :, 0]
    tail.lengths.add_(1)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_recorded_call_is_made_again(dtype: torch.dtype, bits: int) -> None:
    problem = stepped(bits, dtype)
    query, plan = problem.query.clone(), problem.plan()
    graph = HostGraph(lambda: plan.run(query), torch.device("cpu"))
    for again in range(3):
        assert torch.equal(graph.output, problem.plan().run(query))
        query.copy_(query.flip(1))
        appended(problem, *(torch.full_like(each[:, :, :1], again + 1) for each in problem.tail[:2]))
        graph.replay()  # finds it done
        graph.replay()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("ring", [False, True], ids=["no ring", "ring"])
@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_token_is_held_and_attended_to(dtype: torch.dtype, bits: int, ring: bool) -> None:
    problem, expected_in = stepped(bits, dtype), stepped(bits, dtype)
    queries = torch.zeros(2, 6, 3, problem.query.shape[-1], dtype=dtype) if ring else None
    plan = problem.plan()
    step = DecodeStep.over(Planned(plan), problem.tail, queries, problem.query)
    assert step is not None
    for column, size in enumerate((1.0, -2.0, 0.5)):
        query = (size * problem.query).contiguous()
        keys, values = (size * torch.ones_like(each[:, :, :1]) for each in problem.tail[:2])
        assert step.takes(keys, values)
        assert step.asks(query)
        found = step.run(query, keys, values, column)
        appended(expected_in, keys, values)
        assert problem.tail.lengths.tolist() == expected_in.tail.lengths.tolist()
        assert torch.equal(found, expected_in.plan().run(query))
        if queries is not None:
            assert torch.equal(queries[:, :, column], query[:, :, 0])


def test_what_is_of_another_kind_is_neither_taken_nor_asked() -> None:
    problem = stepped(16, torch.float32)
    step = DecodeStep.over(Planned(problem.plan()), problem.tail, None, problem.query)
    assert step is not None
    query, (keys, values) = problem.query.contiguous(), (each[:, :, :1].contiguous() for each in problem.tail[:2])
    for other in (keys[..., :-1].contiguous(), keys.to(BF16), keys[:1], values):
        assert not step.takes(other, values)
    assert not step.takes(keys, keys)
    for other in (
        query[..., :-1].contiguous(),
        query.to(BF16),
        query[:, :5].contiguous(),
        query[..., :64].repeat(1, 1, 2, 1),
    ):
        assert not step.asks(other)


def test_nothing_is_written_where_there_is_no_room() -> None:
    problem = build(Layer([[None]], [[20]], [0, None], [8, 1], heads=6))
    step = DecodeStep.over(Planned(problem.plan()), problem.tail, None, problem.query)
    assert step is not None
    keys, values = (torch.ones_like(each[:, :, :1]) for each in problem.tail[:2])
    before = [each.clone() for each in problem.tail[:3]]
    assert step.run(problem.query.contiguous(), keys, values, 0) is None
    assert all(
        torch.equal(one.nan_to_num(9.0), other.nan_to_num(9.0))
        for one, other in zip(before, problem.tail[:3], strict=True)
    )


def test_plans_count_their_sinks() -> None:
    assert build(Layer([[None]], [[5]], [0], [3])).plan().nbytes() == 0
    assert build(Layer([[None]], [[5]], [0], [3], sinks=True)).plan().nbytes() == 16
