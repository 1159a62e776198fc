"""Decode attention from packed prefixes: random blocks of every format."""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from winnow.kernels import AttentionSpec, Block, DenseBlock, PackedBlock, Parts, TailSegments
from winnow.kernels.formats.bits import pack_rows
from winnow.kernels.formats.entries import Entries
from winnow.kernels.formats.packed import PackedKeys, PackedValues
from winnow.kernels.formats.pruned import Pruned


class Format(NamedTuple):
    """Form of one side of a block."""

    bits: int = 16
    grouped: bool = False
    """Scales of 32 slots or channels, with zeros; else of a slot."""
    group: int = 0
    """Channels of a slot that share a scale, without zeros; 0 for all of them."""
    kept: str = "all"
    """"all"; of a head "channels" or "half"; per slot "mask" (one number of them), "few" (27) or "ragged" (any)."""
    norms: bool = True
    signs: bool = True
    recovery: str = "degenerate"
    rotated: bool = False
    centered: bool = False
    """True for keys with means or spreads of their head."""
    smoothed: bool = False
    """True for keys with means or spreads of their head."""


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

    def either_scales(self, bits: int, *shape: int) -> Tensor:
        """Scales of signed integers: with `scales=signed` below zero where the number of the largest size is above."""
        return self.scales(bits, *shape) * (2 * self.below(2, *shape) - 1)

    def numbers(self, form: Format, slots: int, count: int) -> Tensor:
        if form.bits == 16:
            return self.normal(slots, count)
        return self.below(1 << form.bits, slots, count) - (0 if form.grouped else 1 << (form.bits - 1))

    def data(self, form: Format, slots: int, count: int) -> Tensor:
        numbers = self.numbers(form, slots, count)
        return numbers if form.bits == 16 else pack_rows(numbers, form.bits)

    def entries(self, form: Format, slots: int, count: int, by_slots: bool) -> Entries:
        data = guarded(self.data(form, slots, count))
        if form.bits == 16:
            return Entries(data, 16)
        if form.group:
            scales = guarded(self.either_scales(form.bits, slots, -(-count // form.group)))
            return Entries(data, form.bits, scales, group=form.group)
        if not form.grouped:
            return Entries(data, form.bits, guarded(self.either_scales(form.bits, slots)))
        shape = (slots // 32, count) if by_slots else (slots, -(-count // 32))
        return Entries(data, form.bits, guarded(self.scales(form.bits, *shape)), guarded(self.normal(*shape)))

    def keys(self, form: Format, offsets: Tensor, dim: int) -> PackedKeys:
        slots, heads = int(offsets[-1]), len(offsets) - 1
        if form.kept == "all":
            means = guarded(self.normal(heads, dim)) if form.centered else None
            spreads = guarded(self.positive(heads, dim)) if form.smoothed else None
            entries = self.entries(form, slots, dim, True)
            return PackedKeys(dim, entries, rotated=form.rotated, means=means, spreads=spreads)
        if form.kept in ("channels", "half"):
            count = dim // 2 if form.kept == "half" else int(self.below(dim + 1, 1))
            chosen = torch.stack([torch.randperm(dim, generator=self.generator)[:count].msort() for _ in range(heads)])
            return PackedKeys(dim, self.entries(form, slots, count, True), guarded(chosen.to(torch.int16)))
        entries, pruned = self.masked(form, slots, heads, dim)
        return PackedKeys(dim, entries, pruned=pruned)

    def values(self, form: Format, offsets: Tensor, dim: int) -> PackedValues:
        slots = int(offsets[-1])
        if form.kept == "all":
            return PackedValues(dim, self.entries(form, slots, dim, False), rotated=form.rotated)
        entries, pruned = self.masked(form._replace(norms=False, signs=False), slots, len(offsets) - 1, dim)
        return PackedValues(dim, entries, pruned=pruned)

    def masked(self, form: Format, slots: int, heads: int, dim: int) -> tuple[Entries, Pruned]:
        ragged = form.kept == "ragged"
        most = min(27, dim) if form.kept == "few" else int(self.below(dim + 1, 1))
        counts = self.below(dim + 1, slots) if ragged else torch.full((slots,), most)
        if ragged and slots > 1:
            counts[0], counts[1] = 0, dim
        order = torch.rand(slots, dim, generator=self.generator).argsort(1)
        masks = order < counts[:, None]
        numbers, negative = self.numbers(form, slots, dim), torch.rand(slots, dim, generator=self.generator) < 0.5
        no_bytes = torch.zeros(0, dtype=torch.uint8)
        data_rows, sign_rows = [no_bytes] * slots, [no_bytes] * slots
        # Slots of as many numbers are packed together.
        for count in counts.unique().tolist():
            alike = (counts == count).nonzero().flatten()
            kept = numbers[alike, :count]
            packed = kept if form.bits == 16 else pack_rows(kept, form.bits)
            for slot, data, signs in zip(alike.tolist(), packed, pack_bits(negative[alike, count:]), strict=True):
                data_rows[slot], sign_rows[slot] = data, signs
        sizes = torch.tensor([[row.nbytes for row in rows] for rows in (data_rows, sign_rows)], dtype=torch.int64).T
        sizes = sizes * torch.tensor([1, int(form.signs)])
        starts = sizes.cumsum(0) - sizes
        if ragged:
            data = torch.cat(data_rows) if slots else self.normal(0)
            signs = torch.cat([*sign_rows, no_bytes])
        else:
            data = torch.stack(data_rows) if slots else self.normal(0, most)
            signs = torch.stack(sign_rows) if slots else torch.zeros(0, -(-(dim - most) // 8), dtype=torch.uint8)
        if form.bits != 16:
            data = data.to(torch.uint8)
        scales = None if form.bits == 16 else guarded(self.either_scales(form.bits, slots))
        norms = (torch.rand(heads, dim, generator=self.generator) + 0.5) * (self.below(2, heads, dim) * 2 - 1)
        return Entries(guarded(data), form.bits, scales), Pruned(
            guarded(pack_bits(masks)),
            guarded(self.statistics(form.recovery, slots)),
            guarded(signs) if form.signs else None,
            guarded(norms) if form.norms else None,
            form.recovery,  # type: ignore[arg-type]
            int(self.below(2**32, 1)),
            guarded(starts[::32].contiguous()) if ragged else None,
            fill=0.75 if form.recovery == "constant" else 0.0,
        )

    def statistics(self, recovery: str, slots: int) -> Tensor:
        """Means, deviations and largest sizes; some slots have none of what was pruned, or nothing but equal sizes."""
        means, spread, most = (self.positive(slots, 1) for _ in range(3))
        spread[1::5] = 0
        means[2::5] = 0
        most[3::5] = 0
        # Sizes that no number of the table lies below.
        most[4::10], spread[4::10] = means[4::10] / 1024, means[4::10] / 8
        columns = {
            "degenerate": [means],
            "gaussian": [means, spread],
            "exponential": [means],
            "truncated gaussian": [means, spread, means + most],
            "truncated exponential": [means, most],
            "constant": [means[:, :0]],
        }
        columns["truncated gaussian"][2][4::10] = most[4::10]
        return torch.cat(columns[recovery], 1).contiguous()

    def part(self, form: tuple[Format, Format] | None, slots: list[int], dim: int, value_dim: int) -> Any:
        if form is not None and form[0].grouped:
            slots = [-(-count // 32) * 32 for count in slots]
        offsets = torch.tensor([0, *slots]).cumsum(0)
        if form is None:
            return DenseBlock(self.normal(sum(slots), dim), self.normal(sum(slots), value_dim), offsets)
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


DENSE = Format()
SPARK = Format(kept="mask")
KEYS = {
    "8": Format(8),
    "4": Format(4),
    "2": Format(2),
    "6": Format(6),
    "3": Format(3),
    "8 by 32": Format(8, group=32),
    "6 by 64": Format(6, group=64),
    "4 by 32": Format(4, group=32),
    "4 by 64": Format(4, group=64),
    "3 by 32": Format(3, group=32),
    "kivi 8": Format(8, grouped=True),
    "kivi 6": Format(6, grouped=True),
    "kivi 3": Format(3, grouped=True),
    "kivi 4": Format(4, grouped=True),
    "kivi 2": Format(2, grouped=True),
    "rotated 8": Format(8, rotated=True),
    "rotated 4": Format(4, rotated=True),
    "rotated kivi 4": Format(4, grouped=True, rotated=True),
    "centered 8": Format(8, centered=True),
    "centered kivi 2": Format(2, grouped=True, centered=True),
    "rotated and centered 2": Format(2, rotated=True, centered=True),
    "smoothed 8": Format(8, smoothed=True),
    "smoothed kivi 4": Format(4, grouped=True, smoothed=True),
    "rotated, centered and smoothed 4": Format(4, rotated=True, centered=True, smoothed=True),
    "think": Format(kept="channels"),
    "think half": Format(kept="half"),
    "think 8": Format(8, kept="channels"),
    "think 4": Format(4, kept="channels"),
    "think 4 by 32": Format(4, group=32, kept="channels"),
    "think kivi 2": Format(2, grouped=True, kept="channels"),
    "spark": SPARK,
    "spark of few": Format(kept="few"),
    "spark 8": Format(8, kept="mask"),
    "spark 6": Format(6, kept="mask"),
    "spark 4": Format(4, kept="mask"),
    "spark 3": Format(3, kept="mask"),
    "spark 2": Format(2, kept="mask"),
    "spark without signs": SPARK._replace(signs=False),
    "spark of means": SPARK._replace(norms=False),
    "spark of draws without norms": SPARK._replace(norms=False, recovery="gaussian"),
    "spark gaussian": SPARK._replace(recovery="gaussian"),
    "spark truncated gaussian": SPARK._replace(recovery="truncated gaussian"),
    "spark truncated exponential": SPARK._replace(recovery="truncated exponential", bits=4),
    "spark constant": SPARK._replace(recovery="constant"),
    "spark constant 8": SPARK._replace(recovery="constant", bits=8),
    "spark nothing": SPARK._replace(recovery="constant", norms=False, signs=False),
    "ragged truncated exponential": Format(kept="ragged", recovery="truncated exponential", signs=False),
    "spark exponential": SPARK._replace(recovery="exponential", signs=False),
    "ragged": Format(kept="ragged"),
    "ragged 8": Format(8, kept="ragged"),
    "ragged 4": Format(4, kept="ragged"),
    "ragged 3": Format(3, kept="ragged"),
    "ragged 2 gaussian": Format(2, kept="ragged", recovery="gaussian"),
    "ragged without signs": Format(kept="ragged", signs=False),
}
_PLAIN = ("8", "6", "4", "3", "2")
_GROUPED = ("8 by 32", "6 by 64", "4 by 32", "4 by 64", "3 by 32")
VALUES = {name: KEYS[name] for name in (*_PLAIN, *_GROUPED, *(f"kivi {bits}" for bits in _PLAIN))} | {
    "rotated 8": Format(8, rotated=True),
    "rotated 4": Format(4, rotated=True),
    "rotated kivi 2": Format(2, grouped=True, rotated=True),
    "filled": SPARK,
    "filled 8": Format(8, kept="mask"),
    "filled 4": Format(4, kept="ragged"),
    "filled 3": Format(3, kept="ragged"),
    "filled 2": Format(2, kept="mask"),
    "ragged": Format(kept="ragged"),
}
FORMATS = {f"keys {name}": (form, DENSE) for name, form in KEYS.items()} | {
    f"values {name}": (DENSE, form) for name, form in VALUES.items()
}
