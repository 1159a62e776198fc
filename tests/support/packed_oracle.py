"""Attention from packed prefixes by a slow oracle that knows the written layout and shares no code with the kernels."""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from support.packed_attention import Problem
from support.weight_rounding import ROUNDING
from winnow.kernels import Block, DenseBlock, PackedBlock, parts_of
from winnow.kernels.formats.packed import PackedKeys, PackedValues
from winnow.kernels.formats.pruned import Pruned


def raw(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())


def numbers_of(data: np.ndarray[Any, Any], count: int, bits: int, signed: bool) -> np.ndarray[Any, Any]:
    """[n, count]: integers from the bytes [n, width] of rows."""
    if bits in (6, 3):
        low = {6: 4, 3: 2}[bits]
        border = -(-count * low // 8)
        below = numbers_of(data[:, :border], count, low, False)
        above = numbers_of(data[:, border:], count, bits - low, signed)
        return below + (above << low)
    together = {8: 1, 4: 16, 2: 16, 1: 8}[bits]
    taken = data.astype(np.int64)
    blocks = [taken[:, at : at + together] for at in range(0, taken.shape[1], together)] if together > 1 else [taken]
    # Of every block first the numbers of the lowest bits.
    fields = [block >> shift & ((1 << bits) - 1) for block in blocks for shift in range(0, 8, bits)]
    found = np.concatenate([*fields, taken[:, :0]], axis=1)[:, :count]
    return np.where(found >> (bits - 1) > 0, found - (1 << bits), found) if signed else found


def hash_mix(h: int) -> int:
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = (h ^ h >> shift) * factor % 2**32
    return h ^ h >> 16


@cache
def hash_of(mask: bytes, seed: int) -> int:
    h = seed
    for at in range(0, len(mask), 4):
        h = hash_mix(h ^ int.from_bytes(mask[at : at + 4], "little"))
    return h


def drawn(mask: bytes, seed: int, channel: int, first: int = 0, count: int = 256) -> int:
    """Number of the table that a channel draws, of `count` numbers from `first` on."""
    return first + hash_mix((hash_of(mask, seed) + channel * 0x9E3779B9) % 2**32) * count // 2**32


def size_drawn(recovery: str, stats: tuple[float, ...], mask: bytes, seed: int, channel: int) -> float:
    """Size of a pruned entry; of truncated distributions any number of the table between 0 and the largest size."""
    mean, table = stats[0], draw_table(recovery.removeprefix("truncated "))
    offset, factor = (0.0, mean) if recovery.endswith("exponential") else (mean, stats[1])
    if not recovery.startswith("truncated"):
        return offset + factor * table[drawn(mask, seed, channel)]
    first, count = possible(recovery.removeprefix("truncated "), offset, factor, stats[-1])
    return offset + factor * table[drawn(mask, seed, channel, first, count)] if count else mean


@cache
def possible(recovery: str, offset: float, factor: float, most: float) -> tuple[int, int]:
    """The first number of the table that gives a size between 0 and the largest one, and how many do."""
    table = draw_table(recovery)
    found = [i for i, z in enumerate(table) if factor > 0 and 0 <= offset + factor * z <= most]
    return (found[0], len(found)) if found else (0, 0)


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


@cache
def sylvester(dim: int) -> np.ndarray[Any, Any]:
    """[D, D]: Sylvester's matrices along the diagonal, as large as the largest power of two that divides D."""
    size = next(power for power in (1 << n for n in reversed(range(20))) if dim % power == 0)
    one = np.array([[(-1) ** (row & column).bit_count() for column in range(size)] for row in range(size)])
    return np.kron(np.eye(dim // size), one / math.sqrt(size))


def oracle_side(rows: PackedKeys | PackedValues, block: PackedBlock) -> np.ndarray[Any, Any]:
    """Keys or values [S, D] in float64, the slots of as many numbers together."""
    entries, pruned = rows.entries, rows.pruned
    out = np.zeros((block.slots, rows.dim))
    heads = np.repeat(np.arange(len(block.offsets) - 1), np.diff(block.offsets.numpy()))
    kept = kept_channels(rows, heads)
    counts = kept.sum(1)
    planes = {16: (8 * entries.data.element_size(),), 6: (4, 2), 3: (2, 1)}.get(entries.bits, (entries.bits,))
    widths = sum(-(-counts * plane // 8) for plane in planes)
    firsts = np.cumsum(widths) - widths
    everything = np.frombuffer(raw(entries.data), np.uint8)
    for count in np.unique(counts[counts > 0]).tolist():
        slots = np.flatnonzero(counts == count)
        data = everything[firsts[slots, None] + np.arange(widths[slots[0]])]
        places = np.flatnonzero(kept[slots]).reshape(-1, count) % rows.dim
        out[slots[:, None], places] = scaled_numbers(rows, slots, data, count)
    if rows.rotated:
        out = out @ sylvester(rows.dim).T
    if isinstance(rows, PackedKeys) and rows.spreads is not None:
        out *= rows.spreads.double().numpy()[heads]
    if isinstance(rows, PackedKeys) and rows.means is not None:
        out += rows.means.double().numpy()[heads]
    return out if pruned is None else np.where(kept, out, stand_ins(pruned, heads, kept))


def kept_channels(rows: PackedKeys | PackedValues, heads: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """bool [S, D]: channels that slots of heads [S] have numbers of, which lie in their order."""
    if rows.pruned is not None:
        masks = np.frombuffer(raw(rows.pruned.masks), np.uint8).reshape(rows.pruned.masks.shape)
        return np.unpackbits(masks, axis=1, count=rows.dim, bitorder="little").astype(bool)
    if isinstance(rows, PackedKeys) and rows.channels is not None:
        of_head = np.zeros((len(rows.channels), rows.dim), dtype=bool)
        for head, channels in enumerate(rows.channels.tolist()):
            assert channels == sorted(channels)
            of_head[head, channels] = True
        return of_head[heads]
    return np.ones((len(heads), rows.dim), dtype=bool)


def scaled_numbers(
    rows: PackedKeys | PackedValues, slots: np.ndarray[Any, Any], data: np.ndarray[Any, Any], count: int
) -> np.ndarray[Any, Any]:
    """[n, count] in float64: the numbers of some slots [n], of their bytes [n, width]."""
    entries = rows.entries
    if entries.bits == 16:
        return torch.from_numpy(data).view(entries.data.dtype).double().numpy()
    numbers = numbers_of(data, count, entries.bits, entries.zeros is None)
    assert entries.scales is not None
    scales, at = entries.scales.double().numpy(), np.arange(count)
    if entries.zeros is None:
        return numbers * (scales[slots][:, at // entries.group] if entries.group else scales[slots][:, None])
    zeros = entries.zeros.double().numpy()
    if isinstance(rows, PackedKeys):
        return zeros[slots // 32][:, at] + scales[slots // 32][:, at] * numbers
    return zeros[slots][:, at // 32] + scales[slots][:, at // 32] * numbers


def stand_ins(pruned: Pruned, heads: np.ndarray[Any, Any], kept: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[S, D]: numbers in the place of those that slots of heads [S] did not keep; elsewhere anything."""
    constant = pruned.recovery == "constant"
    stats = pruned.stats.double().numpy()
    sizes = np.repeat(np.full((len(kept), 1), pruned.fill) if constant else stats[:, :1], kept.shape[1], axis=1)
    if pruned.inverse_norms is None:
        return sizes
    if pruned.recovery not in ("degenerate", "constant"):
        for slot, channel in np.argwhere(~kept).tolist():
            mask = raw(pruned.masks[slot])
            sizes[slot, channel] = size_drawn(pruned.recovery, tuple(stats[slot].tolist()), mask, pruned.seed, channel)
    sizes *= pruned.inverse_norms.double().numpy()[heads]
    if pruned.signs is not None:
        signs, place = np.frombuffer(raw(pruned.signs), np.uint8), 0
        for slot, gone in enumerate(map(np.flatnonzero, ~kept)):
            size = -(-len(gone) // 8)
            negative = np.unpackbits(signs[place : place + size], count=len(gone), bitorder="little")
            sizes[slot, gone] *= 1.0 - 2.0 * negative
            place += size
    return sizes


def oracle_prefix(block: Block) -> list[list[tuple[np.ndarray[Any, Any], ...]]]:
    """Per part and head: keys [n, D], values [n, Dv], and [n], 1 where values are dense and else 0."""
    found = []
    for part in parts_of(block):
        if isinstance(part, DenseBlock):
            keys, values, dense = part.keys.double().numpy(), part.values.double().numpy(), True
        else:
            keys, values = oracle_side(part.keys, part), oracle_side(part.values, part)
            dense = part.values.pruned is None and part.values.entries.bits == 16
        bounds = part.offsets.tolist()
        found.append([(keys[a:b], values[a:b], np.full(b - a, float(dense))) for a, b in itertools.pairwise(bounds)])
    return found


def oracle(problem: Problem) -> Tensor:
    """[R, Q, Hq, Dv] in float64, one query at a time."""
    return solved(problem)[0]


def solved(problem: Problem) -> tuple[Tensor, Tensor]:
    """Outputs [R, Q, Hq, Dv] in float64, and how far they are off at most where weights of dense values are rounded."""
    query, prefixes, tail, spec = problem
    rows, query_heads, queries, _ = query.shape
    group = query_heads // tail.keys.shape[1]
    different = {id(prefix): prefix for prefix in prefixes if prefix is not None}  # rows may share one
    known = {name: oracle_prefix(prefix) for name, prefix in different.items()}
    out, off = np.zeros((2, rows, queries, query_heads, tail.values.shape[-1]))
    for row, i, query_head in np.ndindex(rows, queries, query_heads):
        head = query_head // group
        seen = max(0, int(tail.lengths[row]) - (queries - 1 - i))
        pieces = [parts[head] for parts in known.get(id(prefixes[row]), [])]
        pieces.append((*(each[row, head, :seen].double().numpy() for each in tail[:2]), np.ones(seen)))
        keys, values, dense = (np.concatenate(each) for each in zip(*pieces, strict=True))
        logits = spec.scaling * (keys @ query[row, query_head, i].double().numpy())
        if spec.softcap is not None:
            logits = spec.softcap * np.tanh(logits / spec.softcap)
        sink = -np.inf if spec.sinks is None else float(spec.sinks[query_head])
        highest = max(sink, logits.max(initial=-np.inf))
        if not len(logits):
            continue
        weights = np.exp(logits - highest)
        weights /= weights.sum() + np.exp(sink - highest)
        out[row, i, query_head] = weights @ values
        rounded = weights * dense
        off[row, i, query_head] = rounded @ np.abs(values) + rounded.sum() * np.abs(out[row, i, query_head])
    return torch.from_numpy(out), ROUNDING * torch.from_numpy(off)
