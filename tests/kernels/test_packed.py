"""Decode attention from packed prefixes against a slow oracle that knows the written layout and shares no code."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import math
import mmap
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.instruction_sets import available
from winnow.kernels import AttentionSpec, PrefixBlock, TailSegments, attend, native
from winnow.kernels.bits import pack_rows, row_bytes, unpack_rows
from winnow.kernels.packed import (
    Block,
    Entries,
    PackedBlock,
    PackedKeys,
    PackedValues,
    Parts,
    Pruned,
    parts_of,
)
from winnow.kernels.reference import ReferencePlan

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Relative and absolute: fp32 as computed; the others as rounded on output, with what integer products add to it.
TOLERANCE = {torch.float32: (1e-5, 1e-5), torch.bfloat16: (2**-8, 1e-4), torch.float16: (2**-10, 1e-4)}


# --- formats and random blocks of them -----------------------------------------------------------------------------


class Format(NamedTuple):
    """How one side of a block is written."""

    bits: int = 16
    grouped: bool = False
    """Scales of 32 slots or channels, with zeros; else of a slot."""
    kept: str = "all"
    """"all", "channels" (of a head), "mask" (per slot, one number of them) or "ragged" (any number)."""
    norms: bool = True
    signs: bool = True
    recovery: str = "degenerate"


class Layer(NamedTuple):
    """Sizes of a layer and the formats of its prefixes; a row has the prefix of its index, or none."""

    prefixes: list[list[tuple[Format, Format] | None]]
    """Per prefix the formats of keys and values of every part; None: dense."""
    slots: list[list[list[int]]]
    """Per prefix and part: slots of every head."""
    rows: list[int | None]
    dim: int = 64
    value_dim: int = 64
    group: int = 2
    queries: int = 1
    tail: int = 3
    softcap: float | None = None
    sinks: bool = False

    @property
    def heads(self) -> int:
        return len(self.slots[0][0])


class Problem(NamedTuple):
    query: Tensor
    prefixes: list[Block | None]
    tail: TailSegments
    spec: AttentionSpec


def guarded(tensor: Tensor) -> Tensor:
    """The same numbers right before memory that must not be read."""
    if sys.platform != "linux" or not tensor.numel():
        return tensor
    page = mmap.PAGESIZE
    size = -(-tensor.nbytes // page) * page
    memory = mmap.mmap(-1, size + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address + size), ctypes.c_size_t(page), 0) == 0
    copy = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=size - tensor.nbytes)
    return copy.copy_(tensor.flatten()).view(tensor.shape)


class Maker:
    """Random tensors of one dtype."""

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        self.dtype = dtype
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator).to(self.dtype)

    def positive(self, *shape: int) -> Tensor:
        return (torch.rand(*shape, generator=self.generator) + 0.5).to(self.dtype)

    def below(self, end: int, *shape: int) -> Tensor:
        return torch.randint(end, shape, generator=self.generator)

    def scales(self, bits: int, *shape: int) -> Tensor:
        return (self.positive(*shape) / (1 << (bits - 1))).to(self.dtype)

    def entries(self, form: Format, slots: int, count: int, by_slots: bool) -> Entries:
        if form.bits == 16:
            return Entries(guarded(self.normal(slots, count)), 16)
        numbers = self.below(1 << form.bits, slots, count)
        if not form.grouped:
            numbers -= 1 << (form.bits - 1)
        data = guarded(pack_rows(numbers, form.bits))
        if not form.grouped:
            return Entries(data, form.bits, guarded(self.scales(form.bits, slots)))
        shape = (slots // 32, count) if by_slots else (slots, -(-count // 32))
        return Entries(data, form.bits, guarded(self.scales(form.bits, *shape)), guarded(self.normal(*shape)))

    def keys(self, form: Format, offsets: Tensor, dim: int) -> PackedKeys:
        slots, heads = int(offsets[-1]), len(offsets) - 1
        if form.kept == "all":
            return PackedKeys(dim, self.entries(form, slots, dim, True))
        if form.kept == "channels":
            count = int(self.below(dim + 1, 1))
            chosen = torch.stack([torch.randperm(dim, generator=self.generator)[:count].msort() for _ in range(heads)])
            return PackedKeys(dim, self.entries(form, slots, count, True), guarded(chosen.to(torch.int16)))
        entries, pruned = self.masked(form, slots, heads, dim)
        return PackedKeys(dim, entries, pruned=pruned)

    def values(self, form: Format, offsets: Tensor, dim: int) -> PackedValues:
        slots = int(offsets[-1])
        if form.kept == "all":
            return PackedValues(dim, self.entries(form, slots, dim, False))
        entries, pruned = self.masked(form._replace(norms=False, signs=False), slots, len(offsets) - 1, dim)
        return PackedValues(dim, entries, pruned=pruned)

    def masked(self, form: Format, slots: int, heads: int, dim: int) -> tuple[Entries, Pruned]:
        ragged = form.kept == "ragged"
        most = int(self.below(dim + 1, 1))
        counts = self.below(dim + 1, slots) if ragged else torch.full((slots,), most)
        if ragged and slots > 1:
            counts[0], counts[1] = 0, dim
        order = torch.rand(slots, dim, generator=self.generator).argsort(1)
        masks = order < counts[:, None]
        starts = torch.zeros(slots, 2, dtype=torch.int64)
        data_rows, sign_rows, place = [], [], [0, 0]
        for slot, count in enumerate(counts.tolist()):
            starts[slot] = torch.tensor(place)
            data_rows.append(self.entries(form._replace(kept="all"), 1, count, False).data[0])
            sign_rows.append(pack_bits(torch.rand(1, dim - count, generator=self.generator) < 0.5)[0])
            place[0] += data_rows[-1].nbytes
            place[1] += len(sign_rows[-1])
        if ragged:
            data = torch.cat(data_rows) if slots else self.normal(0)
            signs = torch.cat(sign_rows) if slots else torch.zeros(0, dtype=torch.uint8)
        else:
            data = torch.stack(data_rows) if slots else self.normal(0, most)
            signs = torch.stack(sign_rows) if slots else torch.zeros(0, -(-(dim - most) // 8), dtype=torch.uint8)
        if form.bits != 16:
            data = data.to(torch.uint8)
        scales = None if form.bits == 16 else guarded(self.scales(form.bits, slots))
        norms = (torch.rand(heads, dim, generator=self.generator) + 0.5) * (self.below(2, heads, dim) * 2 - 1)
        return Entries(guarded(data), form.bits, scales), Pruned(
            guarded(pack_bits(masks)),
            guarded(self.positive(slots, 2 if form.recovery == "gaussian" else 1)),
            guarded(signs) if form.signs else None,
            guarded(norms) if form.norms else None,
            form.recovery,  # type: ignore[arg-type]
            int(self.below(2**32, 1)),
            guarded(starts[::32].contiguous()) if ragged else None,
        )

    def part(self, form: tuple[Format, Format] | None, slots: list[int], dim: int, value_dim: int) -> Any:
        if form is not None and form[0].grouped:
            slots = [-(-count // 32) * 32 for count in slots]
        offsets = torch.tensor([0, *slots]).cumsum(0)
        if form is None:
            return PrefixBlock(self.normal(sum(slots), dim), self.normal(sum(slots), value_dim), offsets)
        return PackedBlock(
            self.keys(form[0], offsets, dim), self.values(form[1], offsets, value_dim), offsets, self.dtype
        )


def pack_bits(flags: Tensor) -> Tensor:
    """bool [n, count] -> uint8 [n, ceil(count / 8)], the first flag in the lowest bit."""
    return torch.from_numpy(np.packbits(flags.numpy(), axis=1, bitorder="little"))


def build(layer: Layer, dtype: torch.dtype = torch.float32, seed: int = 0) -> Problem:
    """Tensors of a layer. The tail is NaN behind its valid length."""
    make = Maker(dtype, seed)
    blocks: list[Block] = []
    for forms, slots in zip(layer.prefixes, layer.slots, strict=True):
        parts = [make.part(form, each, layer.dim, layer.value_dim) for form, each in zip(forms, slots, strict=True)]
        blocks.append(parts[0] if len(parts) == 1 else Parts(tuple(parts)))
    rows, heads, capacity = len(layer.rows), layer.heads, layer.tail + 2
    keys, values = make.normal(rows, heads, capacity, layer.dim), make.normal(rows, heads, capacity, layer.value_dim)
    keys[:, :, layer.tail :] = math.nan
    values[:, :, layer.tail :] = math.nan
    query = make.normal(rows, layer.queries, heads * layer.group, layer.dim).transpose(1, 2)
    sinks = torch.randn(heads * layer.group, generator=make.generator) if layer.sinks else None
    tail = TailSegments(keys, values, torch.full((rows,), layer.tail))
    prefixes = [None if row is None else blocks[row] for row in layer.rows]
    return Problem(query, prefixes, tail, AttentionSpec(layer.dim**-0.5, layer.softcap, sinks))


# --- the oracle ----------------------------------------------------------------------------------------------------


def raw(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())


def numbers_of(data: bytes, count: int, bits: int, signed: bool) -> list[int]:
    """`count` integers from the bytes of a row."""
    found: list[int] = []
    per_byte = 8 // bits
    for first in range(0, len(data), 16) if bits != 8 else range(len(data)):
        block = data[first : first + (16 if bits != 8 else 1)]
        for field in range(per_byte):
            found.extend(byte >> (bits * field) & ((1 << bits) - 1) for byte in block)
    found = found[:count]
    return [n - (1 << bits) if signed and n >= 1 << (bits - 1) else n for n in found]


def bit(data: bytes, index: int) -> bool:
    return bool(data[index // 8] >> (index % 8) & 1)


def hash_mix(h: int) -> int:
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = (h ^ h >> shift) * factor % 2**32
    return h ^ h >> 16


def drawn(mask: bytes, seed: int, channel: int) -> int:
    h = seed
    for first in range(0, len(mask), 4):
        h = hash_mix(h ^ int.from_bytes(mask[first : first + 4], "little"))
    return hash_mix((h + channel * 0x9E3779B9) % 2**32) >> 24


@cache
def draw_table(recovery: str) -> list[float]:
    """256 quantiles in the middle of equal shares, with the moments made exact."""
    shares = [(i + 0.5) / 256 for i in range(256)]
    if recovery == "exponential":
        values = [-math.log(1 - share) for share in shares]
        return [value * 256 / sum(values) for value in values]
    values = [math.sqrt(2) * inverse_erf(2 * share - 1) for share in shares]
    size = math.sqrt(sum(value**2 for value in values) / 256)
    return [value / size for value in values]


def inverse_erf(y: float) -> float:
    low, high = -6.0, 6.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if math.erf(middle) < y else (low, middle)
    return low


def oracle_side(rows: PackedKeys | PackedValues, block: PackedBlock) -> np.ndarray[Any, Any]:
    """Keys or values [S, D] in float64, entry by entry."""
    entries, pruned = rows.entries, rows.pruned
    out = np.zeros((block.slots, rows.dim))
    data, size = entries.data, entries.data.element_size()
    everything = raw(data)
    scales = None if entries.scales is None else entries.scales.double().tolist()
    zeros = None if entries.zeros is None else entries.zeros.double().tolist()
    bounds = block.offsets.tolist()
    data_at = sign_at = 0
    for slot in range(block.slots):
        head = next(h for h in range(len(bounds) - 1) if bounds[h] <= slot < bounds[h + 1])
        if pruned is not None:
            mask = raw(pruned.masks[slot])
            places = [j for j in range(rows.dim) if bit(mask, j)]
        elif isinstance(rows, PackedKeys) and rows.channels is not None:
            places = rows.channels[head].tolist()
        else:
            places = list(range(rows.dim))
        width = len(places) * size if entries.bits == 16 else -(-len(places) * entries.bits // 8)
        row = everything[data_at : data_at + width]
        data_at += width
        if entries.bits == 16:
            numbers = torch.frombuffer(bytearray(row), dtype=data.dtype).double().tolist() if row else []
        else:
            numbers = [float(n) for n in numbers_of(row, len(places), entries.bits, zeros is None)]
            assert scales is not None
            for i, n in enumerate(numbers):
                if zeros is None:
                    numbers[i] = scales[slot] * n
                elif isinstance(rows, PackedKeys):
                    numbers[i] = zeros[slot // 32][i] + scales[slot // 32][i] * n
                else:
                    numbers[i] = zeros[slot][i // 32] + scales[slot][i // 32] * n
        out[slot, places] = numbers
        if pruned is None:
            continue
        gone = [j for j in range(rows.dim) if j not in set(places)]
        signs = raw(pruned.signs)[sign_at:] if pruned.signs is not None else b""
        sign_at += -(-len(gone) // 8)
        stats = pruned.stats[slot].double().tolist()
        for i, j in enumerate(gone):
            if pruned.inverse_norms is None:
                out[slot, j] = stats[0]
                continue
            saliency = stats[0]
            if pruned.recovery != "degenerate":
                draw = draw_table(pruned.recovery)[drawn(mask, pruned.seed, j)]
                saliency = stats[0] * draw if pruned.recovery == "exponential" else stats[0] + stats[1] * draw
            negative = pruned.signs is not None and bit(signs, i)
            out[slot, j] = saliency * float(pruned.inverse_norms[head, j]) * (-1 if negative else 1)
    return out


def oracle_prefix(block: Block) -> list[list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]]:
    """Per part and head: keys [n, D] and values [n, Dv]."""
    found = []
    for part in parts_of(block):
        if isinstance(part, PrefixBlock):
            keys, values = part.keys.double().numpy(), part.values.double().numpy()
        else:
            keys, values = oracle_side(part.keys, part), oracle_side(part.values, part)
        bounds = part.offsets.tolist()
        found.append([(keys[a:b], values[a:b]) for a, b in itertools.pairwise(bounds)])
    return found


def oracle(problem: Problem) -> Tensor:
    """[R, Q, Hq, Dv] in float64, one query at a time."""
    query, prefixes, tail, spec = problem
    rows, query_heads, queries, _ = query.shape
    group = query_heads // tail.keys.shape[1]
    known = {id(prefix): oracle_prefix(prefix) for prefix in prefixes if prefix is not None}
    out = np.zeros((rows, queries, query_heads, tail.values.shape[-1]))
    for row, i, query_head in np.ndindex(rows, queries, query_heads):
        head = query_head // group
        seen = max(0, int(tail.lengths[row]) - (queries - 1 - i))
        pieces = [parts[head] for parts in known.get(id(prefixes[row]), [])]
        pieces.append(tuple(each[row, head, :seen].double().numpy() for each in (tail.keys, tail.values)))
        keys, values = (np.concatenate(each) for each in zip(*pieces, strict=True))
        logits = spec.scaling * (keys @ query[row, query_head, i].double().numpy())
        if spec.softcap is not None:
            logits = spec.softcap * np.tanh(logits / spec.softcap)
        sink = -np.inf if spec.sinks is None else float(spec.sinks[query_head])
        highest = max(sink, logits.max(initial=-np.inf))
        if not len(logits):
            continue
        weights = np.exp(logits - highest)
        out[row, i, query_head] = weights @ values / (weights.sum() + np.exp(sink - highest))
    return torch.from_numpy(out)


# --- attention from packed blocks ----------------------------------------------------------------------------------


@pytest.fixture
def isas() -> Iterator[list[str]]:
    """What the machine has; restores the one in use."""
    found = available()
    used = native.isa() if found else ""
    yield found
    if found:
        native.select_isa(used)


def check(problem: Problem, isas: list[str], dtype: torch.dtype) -> None:
    """The reference and the kernels of every instruction set against the oracle."""
    expected = oracle(problem)
    relative, absolute = TOLERANCE[dtype]

    def close(out: Tensor, what: str) -> None:
        def named(text: str) -> str:
            return f"{what}: {text}"

        torch.testing.assert_close(out.double(), expected, rtol=relative, atol=absolute, msg=named)

    close(ReferencePlan(problem.prefixes, problem.tail, problem.spec).run(problem.query), "reference")
    for isa in isas:
        native.select_isa(isa)
        close(native.NativePlan(problem.prefixes, problem.tail, problem.spec).run(problem.query), isa)


DENSE = Format()
SPARK = Format(kept="mask")
KEYS = {
    "8": Format(8),
    "4": Format(4),
    "2": Format(2),
    "kivi 8": Format(8, grouped=True),
    "kivi 4": Format(4, grouped=True),
    "kivi 2": Format(2, grouped=True),
    "think": Format(kept="channels"),
    "think 8": Format(8, kept="channels"),
    "think 4": Format(4, kept="channels"),
    "think kivi 2": Format(2, grouped=True, kept="channels"),
    "spark": SPARK,
    "spark 8": Format(8, kept="mask"),
    "spark 4": Format(4, kept="mask"),
    "spark 2": Format(2, kept="mask"),
    "spark without signs": SPARK._replace(signs=False),
    "spark of means": SPARK._replace(norms=False),
    "spark of draws without norms": SPARK._replace(norms=False, recovery="gaussian"),
    "spark gaussian": SPARK._replace(recovery="gaussian"),
    "spark exponential": SPARK._replace(recovery="exponential", signs=False),
    "ragged": Format(kept="ragged"),
    "ragged 8": Format(8, kept="ragged"),
    "ragged 4": Format(4, kept="ragged"),
    "ragged 2 gaussian": Format(2, kept="ragged", recovery="gaussian"),
    "ragged without signs": Format(kept="ragged", signs=False),
}
VALUES = {name: KEYS[name] for name in ("8", "4", "2", "kivi 8", "kivi 4", "kivi 2")} | {
    "filled": SPARK,
    "filled 8": Format(8, kept="mask"),
    "filled 4": Format(4, kept="ragged"),
    "filled 2": Format(2, kept="mask"),
    "ragged": Format(kept="ragged"),
}
FORMATS = {f"keys {name}": (form, DENSE) for name, form in KEYS.items()} | {
    f"values {name}": (DENSE, form) for name, form in VALUES.items()
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_matches_the_oracle(name: str, dtype: torch.dtype, isas: list[str]) -> None:
    """Each side alone, at the usual sizes and at odd ones."""
    for dim, value_dim, group in ((128, 128, 4), (80, 40, 3)):
        layer = Layer([[FORMATS[name]]], [[[37, 0, 2]]], [0], dim, value_dim, group)
        check(build(layer, dtype), isas, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_both_sides_packed_and_cut_into_chunks(dtype: torch.dtype, isas: list[str]) -> None:
    for keys, values in (("8", "8"), ("4", "4"), ("2", "2"), ("kivi 4", "kivi 2"), ("ragged", "filled 8")):
        forms: list[tuple[Format, Format] | None] = [(KEYS[keys], VALUES[values]), None]
        layer = Layer([forms], [[[1350, 33], [1, 3]]], [0], 64, 64, 8, sinks=True)
        check(build(layer, dtype), isas, dtype)


@pytest.mark.parametrize("group", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("name", ["spark", "spark 8", "spark without signs", "spark of means", "ragged", "ragged 8"])
def test_enough_masked_keys_to_read_beyond_their_rows(name: str, group: int, isas: list[str]) -> None:
    """Kernels that take keys with channels of their own as they lie do so far from the ends of arrays only."""
    for dtype in (torch.bfloat16, torch.float16):
        for dim in (32, 96, 128):
            layer = Layer([[(KEYS[name], DENSE)]], [[[75, 0, 130]]], [0], dim, 64, group)
            check(build(layer, dtype), isas, dtype)


@pytest.mark.parametrize("dim", [256, 512, 528])
@pytest.mark.parametrize("name", ["8", "4", "kivi 8", "kivi 4"])
def test_largest_sums_of_integers(name: str, dim: int, isas: list[str]) -> None:
    """Keys whose numbers are all the largest or all the least, and queries of one sign."""
    problem = build(Layer([[(KEYS[name], DENSE)]], [[[64]]], [0], dim, 64, 4), torch.bfloat16)
    block = problem.prefixes[0]
    assert isinstance(block, PackedBlock)
    assert isinstance(block.keys, PackedKeys)
    most, least = {"8": (0x7F, 0x80), "4": (0x77, 0x88)}.get(name, (0xFF, 0))
    block.keys.entries.data.fill_(most)[::2] = least
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
    assert isinstance(dense, PrefixBlock)
    later = PrefixBlock(dense.keys, dense.values, dense.offsets, torch.tensor([4, 12]))
    rows = [torch.arange(4, 9), torch.arange(12, 12)]
    cut = PrefixBlock(dense.keys[torch.cat(rows)], dense.values[torch.cat(rows)], torch.tensor([0, 5, 5]))
    expected = oracle(problem._replace(prefixes=[Parts((packed, cut))]))
    for isa in isas:
        native.select_isa(isa)
        out = attend(problem.query, [Parts((packed, later))], problem.tail, problem.spec)
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-5)


# --- what does not fit ---------------------------------------------------------------------------------------------


def broken_blocks() -> dict[str, tuple[str, Any]]:
    """Per mistake: the format to start from and what is done to the block's keys."""

    def entries(**changes: Any) -> Any:
        return lambda keys: dataclasses.replace(keys, entries=dataclasses.replace(keys.entries, **changes))

    def pruned(**changes: Any) -> Any:
        return lambda keys: dataclasses.replace(keys, pruned=dataclasses.replace(keys.pruned, **changes))

    byte = torch.uint8
    return {
        "known are 16": ("8", entries(bits=3)),
        r"entries of keys .* \[40, 64\]": ("8", entries(data=torch.zeros(40, 63, dtype=byte))),
        "entries of keys are torch.int8": ("8", entries(data=torch.zeros(40, 64, dtype=torch.int8))),
        "contiguous": ("8", entries(data=torch.zeros(64, 40, dtype=byte).T)),
        "have no scales": ("8", entries(scales=None)),
        r"scales of keys .* \[40\]": ("8", entries(scales=torch.ones(39))),
        "scales of keys are torch.float64": ("8", entries(scales=torch.ones(40, dtype=torch.float64))),
        "zeros of keys": ("kivi 4", entries(zeros=torch.ones(2, 63))),
        "channels must be in": ("think", lambda k: dataclasses.replace(k, channels=k.channels + 64)),
        "channels are": ("think", lambda k: dataclasses.replace(k, channels=k.channels[:1])),
        "one scale per slot": ("spark 8", entries(zeros=torch.ones(2, 64))),
        "masks of keys": ("spark", pruned(masks=torch.zeros(40, 7, dtype=byte))),
        "statistics of keys": ("spark gaussian", pruned(stats=torch.ones(40, 1))),
        "norms of keys": ("spark", pruned(inverse_norms=torch.ones(2, 63))),
        "signs of keys": ("ragged", pruned(signs=torch.ones(40, 8, dtype=byte))),
        "unknown recovery": ("spark", pruned(recovery="other")),
        "starts of keys are": ("ragged", pruned(starts=torch.zeros(3, 2, dtype=torch.int64))),
        "starts of keys must": ("ragged", pruned(starts=torch.full((2, 2), 10**6))),
        "starts of keys must lie": ("ragged", pruned(starts=torch.full((2, 2), -1))),
    }


@pytest.mark.parametrize("mistake", broken_blocks())
def test_wrong_shapes_are_refused(mistake: str) -> None:
    name, change = broken_blocks()[mistake]
    problem = build(Layer([[(KEYS[name], DENSE)]], [[[32, 32] if "kivi" in name else [37, 3]]], [0]))
    block = problem.prefixes[0]
    assert isinstance(block, PackedBlock)
    broken = dataclasses.replace(block, keys=change(block.keys))
    for plan in (native.NativePlan, ReferencePlan) if available() else (ReferencePlan,):
        with pytest.raises(ValueError, match=mistake):
            plan([broken], problem.tail, problem.spec)


def test_grouped_keys_need_whole_groups() -> None:
    problem = build(Layer([[(KEYS["kivi 4"], DENSE)]], [[[32, 32]]], [0]))
    block = problem.prefixes[0]
    assert isinstance(block, PackedBlock)
    broken = dataclasses.replace(block, offsets=torch.tensor([0, 31, 64]))
    with pytest.raises(ValueError, match="multiples of 32"):
        attend(problem.query, [broken], problem.tail, problem.spec)


@pytest.mark.parametrize("kept", ["mask", "ragged"])
def test_masks_that_promise_too_much_read_no_foreign_memory(kept: str, isas: list[str]) -> None:
    """The entries end before memory that must not be read; what comes out is not looked at."""
    problem = build(Layer([[(Format(kept=kept), DENSE)]], [[[37, 3]]], [0]))
    block = problem.prefixes[0]
    assert isinstance(block, PackedBlock)
    assert block.keys.pruned is not None
    pruned = dataclasses.replace(block.keys.pruned, masks=torch.full((40, 8), 255, dtype=torch.uint8))
    broken = dataclasses.replace(block, keys=dataclasses.replace(block.keys, pruned=pruned))
    for isa in isas:
        native.select_isa(isa)
        native.NativePlan([broken], problem.tail, problem.spec).run(problem.query)


# --- integers in bytes ---------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None, derandomize=True)
@given(count=st.integers(0, 150), bits=st.sampled_from([8, 4, 2]), signed=st.booleans(), seed=st.integers(0, 9))
def test_packed_rows_come_back(count: int, bits: int, signed: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    low = -(1 << (bits - 1)) if signed else 0
    numbers = torch.randint(low, low + (1 << bits), (3, count), generator=generator)
    packed = pack_rows(numbers, bits)
    assert packed.shape == (3, row_bytes(count, bits))
    assert unpack_rows(packed, count, bits, signed).tolist() == numbers.tolist()
    for row, expected in zip(packed, numbers.tolist(), strict=True):
        assert numbers_of(raw(row), count, bits, signed) == expected
