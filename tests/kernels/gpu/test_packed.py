"""Decode attention of packed prefixes in Triton against a float64 oracle, under the interpreter or on a GPU."""

from __future__ import annotations

import dataclasses
from itertools import cycle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.gpu import TOLERANCE, solved_by_triton
from support.packed_attention import DENSE, KEYS, VALUES, Format, Layer, Maker, Problem, build, guarded
from support.packed_oracle import oracle
from winnow.kernels import DenseBlock, PackedBlock, Parts
from winnow.kernels.formats.packed import PackedKeys
from winnow.kernels.formats.pruned import Pruned

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SIZES = ((64, 64), (80, 40), (96, 24), (33, 130))
"""Head sizes of keys and values: whole blocks of bytes, broken ones, and rows that fill no byte."""


def check(problem: Problem, dtype: torch.dtype) -> None:
    relative, absolute = TOLERANCE[dtype]
    torch.testing.assert_close(solved_by_triton(problem).double(), oracle(problem), rtol=relative, atol=absolute)


@pytest.mark.parametrize(("keys", "values", "sizes"), zip(KEYS, cycle(VALUES), cycle(SIZES)))
def test_every_format_matches_the_oracle(keys: str, values: str, sizes: tuple[int, int]) -> None:
    check(build(Layer([[(KEYS[keys], VALUES[values])]], [[[33, 0, 2]]], [0], *sizes)), FP32)


@pytest.mark.parametrize("values", VALUES)
def test_every_format_of_values_beside_dense_keys(values: str) -> None:
    check(build(Layer([[(DENSE, VALUES[values])]], [[[35]]], [0], 16, 80, queries=2, softcap=2.0)), FP32)


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize(
    ("keys", "values"),
    [
        *(("8", "8"), ("4", "4"), ("3", "6"), ("rotated and centered 2", "rotated 4"), ("6 by 64", "4 by 32")),
        *(("kivi 4", "kivi 2"), ("think 8", "3 by 32"), ("spark", "filled 8"), ("ragged 4", "ragged")),
    ],
)
def test_models_in_16_bits(keys: str, values: str, dtype: torch.dtype) -> None:
    check(build(Layer([[(KEYS[keys], VALUES[values])]], [[[34]]], [0], group=4), dtype), dtype)


@pytest.mark.parametrize(
    ("keys", "values", "sizes", "dtype"),
    [
        *(("3", "2", (80, 33), FP16), ("2", "3 by 32", (40, 80), FP16), ("6 by 64", "6", (33, 64), FP16)),
        *(("kivi 3", "kivi 3", (64, 80), FP16), ("8", "8 by 32", (130, 80), FP32), ("kivi 8", "8", (80, 130), FP32)),
    ],
)
def test_rows_of_several_tiles_and_tiles_of_several_numbers_of_a_byte(
    keys: str, values: str, sizes: tuple[int, int], dtype: torch.dtype
) -> None:
    check(build(Layer([[(KEYS[keys], VALUES[values])]], [[[34]]], [0], *sizes), dtype), dtype)


def test_rows_are_found_from_the_middle_of_those_that_begin_together() -> None:
    """Slots that are looked at 16 by 16, where it is known where every 32nd row begins."""
    check(build(Layer([[(KEYS["ragged 3"], VALUES["3"])]], [[[17, 50]]], [0]), FP16), FP16)


@pytest.mark.parametrize(("keys", "values"), [("4", "3"), ("kivi 2", "8 by 32"), ("ragged 8", "filled 2")])
def test_heads_that_are_cut_into_chunks(keys: str, values: str) -> None:
    """Heads that end, and begin, between the slots that are looked at together."""
    check(build(Layer([[(KEYS[keys], VALUES[values])]], [[[5, 141]]], [0], 32, 32, sinks=True)), FP32)


def test_small_scales_of_values_in_fp16() -> None:
    """Weights times scales would be below what fp16 holds."""
    problem = build(Layer([[(DENSE, VALUES["8"])]], [[[64]]], [0], tail=0), FP16)
    (block,) = problem.prefixes
    assert isinstance(block, PackedBlock)
    assert block.values.entries.scales is not None
    block.values.entries.scales.mul_(2**-12)
    torch.testing.assert_close(solved_by_triton(problem).double(), oracle(problem), rtol=2**-9, atol=1e-6)


@pytest.mark.parametrize("dtype", [FP32, FP16], ids=str)
@pytest.mark.parametrize("bits", [16, 3])
@pytest.mark.parametrize("kept", [0, 64])
def test_all_or_nothing_kept(kept: int, bits: int, dtype: torch.dtype) -> None:
    """No slot keeps a channel, or every slot keeps them all."""
    problem = build(Layer([[(Format(8), DENSE)]], [[[37, 3]]], [0]), dtype)
    make = Maker(dtype, 1)
    masks = torch.full((40, 8), 255 if kept else 0, dtype=torch.uint8)
    signs = make.below(256, 40, (64 - kept) // 8).to(torch.uint8)
    entries = make.entries(Format(bits), 40, kept, True)
    pruned = Pruned(guarded(masks), make.positive(40, 1), guarded(signs), make.normal(2, 64).float())
    (whole,) = problem.prefixes
    assert isinstance(whole, PackedBlock)
    check(problem._replace(prefixes=[dataclasses.replace(whole, keys=PackedKeys(64, entries, pruned=pruned))]), dtype)


@pytest.mark.skipif(torch.cuda.is_available(), reason="no GPU is asked for heads that long: compiling takes minutes")
@pytest.mark.parametrize(("keys", "values", "dtype"), [("spark", "filled 3", FP16), ("ragged", "filled 8", FP32)])
def test_rows_of_more_channels_than_a_byte_counts(keys: str, values: str, dtype: torch.dtype) -> None:
    check(build(Layer([[(KEYS[keys], VALUES[values])]], [[[35]]], [0], 300, 260), dtype), dtype)


@pytest.mark.parametrize("sizes", [(8, 32), (33, 16), (31, 40), (128, 129)])
@pytest.mark.parametrize(
    ("keys", "values"), [("spark", "filled"), ("ragged", "ragged"), ("spark truncated gaussian", "2")]
)
def test_runs_of_channels_that_fill_no_byte(keys: str, values: str, sizes: tuple[int, int]) -> None:
    """Heads that leave runs of a mask empty, or end within a byte of one."""
    check(build(Layer([[(KEYS[keys], VALUES[values])]], [[[70, 1]]], [0], *sizes), FP16), FP16)


def test_dense_part_reads_from_a_later_start() -> None:
    problem = build(Layer([[(Format(4), DENSE), None]], [[[5, 20], [9, 3]]], [0]))
    (whole,) = problem.prefixes
    assert isinstance(whole, Parts)
    packed, dense = whole.parts
    assert isinstance(dense, DenseBlock)
    rows = torch.arange(4, 9)
    cut = DenseBlock(dense.keys[rows], dense.values[rows], torch.tensor([0, 5, 5]))
    expected = oracle(problem._replace(prefixes=[Parts((packed, cut))]))
    later = DenseBlock(dense.keys, dense.values, dense.offsets, torch.tensor([4, 12]))
    out = solved_by_triton(problem._replace(prefixes=[Parts((packed, later))]))
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-5)


PAIRS = st.one_of(
    st.none(),
    st.tuples(st.sampled_from(sorted(KEYS)), st.sampled_from([*sorted(VALUES), "dense"])).map(
        lambda names: (KEYS[names[0]], VALUES.get(names[1], DENSE))
    ),
)


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    """Rows with prefixes of several parts each, shared or not, or with none."""
    heads = draw(st.integers(1, 2))
    counts = st.lists(st.sampled_from([0, 1, 5, 31, 33]), min_size=heads, max_size=heads)
    prefixes = draw(st.lists(st.lists(PAIRS, min_size=1, max_size=2), min_size=1, max_size=2))
    sizes = st.sampled_from([16, 20, 32, 40, 64, 96])
    return Layer(
        prefixes,
        [[draw(counts) for _ in forms] for forms in prefixes],
        draw(st.lists(st.sampled_from([None, *range(len(prefixes))]), min_size=1, max_size=2)),
        draw(sizes),
        draw(sizes),
        draw(st.integers(1, 8)),
        draw(st.integers(1, 3)),
        draw(st.integers(0, 3)),
        draw(st.sampled_from([None, 3.0])),
        draw(st.booleans()),
    )


@settings(max_examples=6, deadline=None, derandomize=True)
@given(layer=layers(), dtype=st.sampled_from([FP32, BF16, FP16]), seed=st.integers(0, 100))
def test_any_layer_matches_the_oracle(layer: Layer, dtype: torch.dtype, seed: int) -> None:
    check(build(layer, dtype, seed), dtype)
