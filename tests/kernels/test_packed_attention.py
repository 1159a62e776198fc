"""Decode attention from packed prefixes: reference and compiled kernels against the oracle."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.dense_attention import DTYPES
from support.instruction_sets import available
from support.packed_attention import DENSE, FORMATS, KEYS, VALUES, Format, Layer, Maker, build, guarded
from support.packed_checks import TOLERANCE, check
from support.packed_oracle import oracle
from support.turns import in_turn
from support.weight_rounding import rounds_weights
from winnow.kernels import DenseBlock, PackedBlock, Parts, attend, native
from winnow.kernels.formats.bits import pack_rows
from winnow.kernels.formats.packed import PackedKeys
from winnow.kernels.formats.pruned import Pruned
from winnow.kernels.reference import ReferencePlan

BF16, FP16 = torch.bfloat16, torch.float16


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_matches_the_oracle(name: str, dtype: torch.dtype, isas: list[str]) -> None:
    """Each side alone, at the usual sizes and at odd ones."""
    for dim, value_dim, group in ((128, 128, 4), (80, 40, 3)):
        layer = Layer([[FORMATS[name]]], [[[37, 0, 2]]], [0], dim, value_dim, group)
        check(build(layer, dtype), isas, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_both_sides_packed_and_cut_into_chunks(dtype: torch.dtype, isas: list[str]) -> None:
    pairs = [("8", "8"), ("4", "4"), ("2", "2"), ("kivi 4", "kivi 2"), ("ragged", "filled 8")]
    pairs += [("6", "3"), ("4 by 32", "kivi 3")]
    for keys, values in pairs:
        forms: list[tuple[Format, Format] | None] = [(KEYS[keys], VALUES[values]), None]
        layer = Layer([forms], [[[1350, 33], [1, 3]]], [0], 64, 64, 8, sinks=True)
        check(build(layer, dtype), isas, dtype)


@pytest.mark.parametrize("group", [5, 6, 7, 12])
@pytest.mark.parametrize("bits", ["8", "6", "4", "3", "2", "rotated 4"])
def test_blocks_of_five_to_seven_queries(bits: str, group: int, isas: list[str]) -> None:
    """Blocks of their own on AMD processors: whole spans of tokens and not, rows of whole lines and not."""
    for case, dim in enumerate((64, 96, 128)):
        layer = Layer([[(KEYS[bits], VALUES[bits])]], [[[75, 0, 131 + 200 * case]]], [0], dim, dim, group)
        check(build(layer, BF16, case), isas, BF16)


@pytest.mark.parametrize(
    ("name", "group", "sizes"),
    in_turn(
        ["spark", "spark 8", "spark without signs", "spark of means", "ragged", "ragged 8"],
        [1, 2, 4, 7, 8, 16],
        [(dim, dtype) for dim in (32, 96, 128) for dtype in (BF16, FP16)],
    ),
)
def test_enough_masked_keys_to_read_beyond_their_rows(
    name: str, group: int, sizes: list[tuple[int, torch.dtype]], isas: list[str]
) -> None:
    """Kernels that take keys with channels of their own as they lie do so far from the ends of arrays only."""
    for dim, dtype in sizes:
        layer = Layer([[(KEYS[name], DENSE)]], [[[75, 0, 130]]], [0], dim, 64, group)
        check(build(layer, dtype), isas, dtype)


@pytest.mark.parametrize(
    ("name", "group", "sizes"),
    in_turn(
        ["8 by 32", "6 by 64", "4 by 32", "4 by 64", "3 by 32", "kivi 6", "kivi 4"],
        [1, 2, 4, 5, 6, 7, 8, 16],
        [(32, BF16), (64, FP16), (96, BF16), (128, FP16), (160, BF16), (192, FP16)],
    ),
)
def test_scales_of_any_number_of_groups(
    name: str, group: int, sizes: list[tuple[int, torch.dtype]], isas: list[str]
) -> None:
    """Whole groups and a half, as many as registers take together and more, and tokens that fill no vector.

    Against the reference, which the tests above hold to the oracle; without a tail where weights of dense values are
    rounded.
    """
    for dim, dtype in sizes:
        layer = Layer([[(KEYS[name], VALUES[name])]], [[[75, 0, 131]]], [0], dim, dim, group)
        problems = [build(each, dtype, seed=dim) for each in (layer, layer._replace(tail=0))]
        relative, absolute = TOLERANCE[dtype]
        for isa in isas:
            native.select_isa(isa)
            problem = problems[rounds_weights(dtype)]
            arguments = (problem.prefixes, problem.tail, problem.spec)
            expected = ReferencePlan(*arguments).run(problem.query)
            out = native.NativePlan(*arguments).run(problem.query)
            torch.testing.assert_close(out, expected, rtol=2 * relative, atol=absolute)


@pytest.mark.parametrize("bits", ["8", "6", "4", "3", "2"])
def test_integers_in_tiles_are_the_same_to_the_bit(bits: str, isas: list[str]) -> None:
    """AMX sums up the same integers as AVX-512: whole tiles and not, every block of queries, lengths of every rest."""
    if "amx" not in isas:
        pytest.skip("no AMX here")
    lengths = [[1, 31, 32], [64, 129, 0], [1303, 66, 7]]
    sizes = [(64, 3), (128, 4), (192, 4), (256, 3), (64, 8), (192, 5), (128, 7), (256, 9), (64, 15)]
    for case, (dim, group) in enumerate(sizes):
        # The dense tail goes into tiles, too, where rows are short or there are more queries in bf16.
        dtype = BF16 if group < 5 and dim > 64 else FP16
        problem = build(Layer([[(KEYS[bits], VALUES[bits])]], [[lengths[case % 3]]], [0], dim, dim, group), dtype, case)
        outs = []
        for isa in ("avx512bf16", "amx"):
            native.select_isa(isa)
            outs.append(native.NativePlan(problem.prefixes, problem.tail, problem.spec).run(problem.query))
        assert torch.equal(*outs)


@pytest.mark.parametrize("group", [3, 4, 5, 6, 7, 8, 13, 14, 15])
def test_dense_slots_in_tiles(group: int, isas: list[str]) -> None:
    """Enough queries in bf16 for tiles: whole ones and not, and integers and dense slots of a prefix together."""
    forms: list[tuple[Format, Format] | None] = [None, (KEYS["4"], VALUES["8"])]
    for case, (dim, value_dim) in enumerate(((64, 64), (96, 128), (128, 64), (256, 192))):
        lengths = [[1, 301, 66], [64, 129, 0]][case % 2]
        layer = Layer([forms], [[lengths, lengths[::-1]]], [0], dim, value_dim, group, sinks=True)
        check(build(layer, BF16, case), isas, BF16)


PRUNED = ["spark", "spark of few", "spark 8", "spark without signs", "spark of means", "spark constant"]
PRUNED += ["ragged", "ragged 8"]


@pytest.mark.parametrize(
    ("name", "group", "cases"),
    in_turn(
        [*PRUNED, "think half"],
        [1, 2, 4, 5, 6, 7, 8, 13],
        list(enumerate([(64, DENSE), (128, DENSE), (192, VALUES["8"]), (256, VALUES["3"])])),
    ),
)
def test_pruned_keys_in_tiles(
    name: str, group: int, cases: list[tuple[int, tuple[int, Format]]], isas: list[str]
) -> None:
    """Whole tiles and not, rows far from the ends of arrays and near them, beside values of every kind."""
    for case, (dim, values) in cases:
        lengths = [[1, 301, 66], [64, 129, 0]][case % 2]
        layer = Layer([[(KEYS[name], values)]], [[lengths]], [0], dim, 64 * (case + 1), group)
        check(build(layer, BF16, case), isas, BF16)


SCALED = ["6 by 64", "4 by 32", "4 by 64", "3 by 32", "kivi 6", "kivi 4", "kivi 3", "kivi 2"]
SCALED += ["rotated kivi 4", "centered kivi 2", "smoothed kivi 4"]


BESIDE = [VALUES["kivi 4"], VALUES["4 by 32"], VALUES["6 by 64"], VALUES["kivi 3"], VALUES["rotated kivi 2"], DENSE]


@pytest.mark.parametrize(("name", "group", "values"), in_turn(SCALED, [6, 8, 13], list(enumerate(BESIDE))))
def test_scaled_groups_in_tiles(name: str, group: int, values: list[tuple[int, Format]], isas: list[str]) -> None:
    """Whole tiles and not, beside values whose scales are of groups, too, and beside others."""
    for case, form in values:
        dim, value_dim = 64 * (case % 4 + 1), 64 * (case % 3 + 1)
        lengths = [[1, 301, 66], [128, 135, 0], [1303, 7, 160]][case % 3]
        dtype = (BF16, FP16)[case // 3]
        check(build(Layer([[(KEYS[name], form)]], [[lengths]], [0], dim, value_dim, group), dtype, case), isas, dtype)


@pytest.mark.parametrize("dim", [256, 512, 528])
@pytest.mark.parametrize("name", ["8", "6", "4", "8 by 32", "kivi 8", "kivi 4"])
def test_largest_sums_of_integers(name: str, dim: int, isas: list[str]) -> None:
    """Keys whose numbers are all the largest or all the least, and queries of one sign."""
    problem = build(Layer([[(KEYS[name], DENSE)]], [[[64]]], [0], dim, 64, 4), torch.bfloat16)
    block = problem.prefixes[0]
    assert isinstance(block, PackedBlock)
    assert isinstance(block.keys, PackedKeys)
    entries = block.keys.entries
    high = (1 << entries.bits) - 1 if entries.zeros is not None else (1 << (entries.bits - 1)) - 1
    entries.data[:] = pack_rows(torch.full((64, dim), high), entries.bits)
    entries.data[::2] = pack_rows(torch.full((32, dim), 0 if entries.zeros is not None else -high - 1), entries.bits)
    for sign in (1, -1):
        check(problem._replace(query=torch.full_like(problem.query, sign)), isas, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [name for name in FORMATS if name.startswith("values")])
def test_weights_that_all_but_vanish(name: str, dtype: torch.dtype, isas: list[str]) -> None:
    """Queries that attend to one token: blocks of weights so small that the inverse of their size is infinite."""
    problem = build(Layer([[FORMATS[name]]], [[[700, 64]]], [0], 64, 64, 4), dtype)
    problem = problem._replace(query=40 * problem.query)
    expected = oracle(problem)
    for isa in isas:
        native.select_isa(isa)
        out = native.NativePlan(problem.prefixes, problem.tail, problem.spec).run(problem.query)
        # Rounding of logits this large shows in the weights.
        torch.testing.assert_close(out.double(), expected, rtol=2**-6, atol=0.02)


FORMS = st.one_of(
    st.none(),
    st.tuples(st.sampled_from(sorted(KEYS)), st.sampled_from([*sorted(VALUES), "dense"])).map(
        lambda names: (KEYS[names[0]], VALUES.get(names[1], DENSE))
    ),
)


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    heads = draw(st.integers(1, 3))
    counts = st.lists(st.sampled_from([0, 1, 2, 5, 31, 33, 40]), min_size=heads, max_size=heads)
    prefixes = draw(st.lists(st.lists(FORMS, min_size=1, max_size=3), min_size=1, max_size=2))
    sizes = st.sampled_from([16, 20, 32, 40, 64, 80, 96, 128, 136])
    return Layer(
        prefixes,
        [[draw(counts) for _ in forms] for forms in prefixes],
        draw(st.lists(st.sampled_from([None, *range(len(prefixes))]), min_size=1, max_size=3)),
        draw(sizes),
        draw(sizes),
        draw(st.integers(1, 8)),
        draw(st.integers(1, 3)),
        draw(st.integers(0, 5)),
        draw(st.sampled_from([None, 3.0])),
        draw(st.booleans()),
    )


@settings(max_examples=150, deadline=None, derandomize=True)
@given(layer=layers(), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 100))
def test_any_layer_matches_the_oracle(layer: Layer, dtype: torch.dtype, seed: int) -> None:
    used = native.isa() if available() else ""
    try:
        check(build(layer, dtype, seed), available(), dtype)
    finally:
        if used:
            native.select_isa(used)


@pytest.mark.parametrize("kept", [0, 64])
@pytest.mark.parametrize("bits", [16, 8, 4, 2])
def test_all_or_nothing_kept(kept: int, bits: int, isas: list[str]) -> None:
    """No slot keeps a channel, or every slot keeps them all."""
    problem = build(Layer([[(Format(8), DENSE)]], [[[37, 3]]], [0]))
    make = Maker(torch.float32, 1)
    masks = torch.full((40, 8), 255 if kept else 0, dtype=torch.uint8)
    signs = make.below(256, 40, (64 - kept) // 8).to(torch.uint8)
    for starts in (None, torch.zeros(2, 2, dtype=torch.int64)):
        entries = make.entries(Format(bits), 40, kept, True)
        if starts is not None:
            starts[1] = torch.tensor([32 * entries.data[0].nbytes, 32 * signs.shape[1]])
            entries = dataclasses.replace(entries, data=guarded(entries.data.flatten()))
        pruned = Pruned(
            guarded(masks),
            make.positive(40, 1),
            guarded(signs if starts is None else signs.flatten()),
            make.normal(2, 64),
            starts=starts,
        )
        whole = problem.prefixes[0]
        assert isinstance(whole, PackedBlock)
        block = dataclasses.replace(whole, keys=PackedKeys(64, entries, pruned=pruned))
        check(problem._replace(prefixes=[block]), isas, torch.float32)


def test_dense_part_reads_from_a_later_start(isas: list[str]) -> None:
    problem = build(Layer([[(Format(4), DENSE), None]], [[[5, 40], [9, 3]]], [0]))
    whole = problem.prefixes[0]
    assert isinstance(whole, Parts)
    packed, dense = whole.parts
    assert isinstance(dense, DenseBlock)
    later = DenseBlock(dense.keys, dense.values, dense.offsets, torch.tensor([4, 12]))
    rows = [torch.arange(4, 9), torch.arange(12, 12)]
    cut = DenseBlock(dense.keys[torch.cat(rows)], dense.values[torch.cat(rows)], torch.tensor([0, 5, 5]))
    expected = oracle(problem._replace(prefixes=[Parts((packed, cut))]))
    for isa in isas:
        native.select_isa(isa)
        out = attend(problem.query, [Parts((packed, later))], problem.tail, problem.spec)
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-5)
