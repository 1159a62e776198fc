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


def raw(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())


def numbers_of(data: bytes, count: int, bits: int, signed: bool) -> np.ndarray[Any, Any]:
    """[count]: integers from the bytes of a row."""
    if bits in (6, 3):
        low = {6: 4, 3: 2}[bits]
        border = -(-count * low // 8)
        below = numbers_of(data[:border], count, low, False)
        above = numbers_of(data[border:], count, bits - low, signed)
        return below + (above << low)
    together = {8: 1, 4: 16, 2: 16, 1: 8}[bits]
    taken = np.frombuffer(data, np.uint8).astype(np.int64)
    whole = len(data) // together * together
    found = np.concatenate([_fields(taken[:whole].reshape(-1, together), bits), _fields(taken[None, whole:], bits)])
    found = found[:count]
    return np.where(found >> (bits - 1) > 0, found - (1 << bits), found) if signed else found


def _fields(blocks: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    """The numbers of blocks [B, n] of bytes, of every block first those of the lowest bits."""
    shifts = bits * np.arange(8 // bits)
    return (blocks[:, None] >> shifts[:, None] & ((1 << bits) - 1)).ravel()


def bit(data: bytes, index: int) -> bool:
    return bool(data[index // 8] >> (index % 8) & 1)


def hash_mix(h: int) -> int:
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = (h ^ h >> shift) * factor % 2**32
    return h ^ h >> 16


def drawn(mask: bytes, seed: int, channel: int, first: int = 0, count: int = 256) -> int:
    """Number of the table that a channel draws, of `count` numbers from `first` on."""
    h = seed
    for at in range(0, len(mask), 4):
        h = hash_mix(h ^ int.from_bytes(mask[at : at + 4], "little"))
    return first + hash_mix((h + channel * 0x9E3779B9) % 2**32) * count // 2**32


def size_drawn(recovery: str, stats: list[float], mask: bytes, seed: int, channel: int) -> float:
    """Size of a pruned entry; of truncated distributions any number of the table between 0 and the largest size."""
    mean, table = stats[0], draw_table(recovery.removeprefix("truncated "))
    offset, factor = (0.0, mean) if recovery.endswith("exponential") else (mean, stats[1])
    if not recovery.startswith("truncated"):
        return offset + factor * table[drawn(mask, seed, channel)]
    possible = [i for i, z in enumerate(table) if factor > 0 and 0 <= offset + factor * z <= stats[-1]]
    if not possible:
        return mean
    return offset + factor * table[drawn(mask, seed, channel, possible[0], len(possible))]


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
    """Keys or values [S, D] in float64, entry by entry."""
    entries, pruned = rows.entries, rows.pruned
    out = np.zeros((block.slots, rows.dim))
    data, size = entries.data, entries.data.element_size()
    everything = raw(data)
    scales = None if entries.scales is None else entries.scales.double().numpy()
    zeros = None if entries.zeros is None else entries.zeros.double().numpy()
    bounds = block.offsets.tolist()
    all_signs = b"" if pruned is None or pruned.signs is None else raw(pruned.signs)
    norms = None if pruned is None or pruned.inverse_norms is None else pruned.inverse_norms.double().tolist()
    data_at = sign_at = 0
    for slot in range(block.slots):
        head = next(h for h in range(len(bounds) - 1) if bounds[h] <= slot < bounds[h + 1])
        if pruned is not None:
            mask = raw(pruned.masks[slot])
            kept = np.unpackbits(np.frombuffer(mask, np.uint8), count=rows.dim, bitorder="little")
            places = np.flatnonzero(kept).tolist()
        elif isinstance(rows, PackedKeys) and rows.channels is not None:
            places = rows.channels[head].tolist()
        else:
            places = list(range(rows.dim))
        planes = {16: (8 * size,), 6: (4, 2), 3: (2, 1)}.get(entries.bits, (entries.bits,))
        width = sum(-(-len(places) * plane // 8) for plane in planes)
        row = everything[data_at : data_at + width]
        data_at += width
        if entries.bits == 16:
            read = torch.frombuffer(bytearray(row), dtype=data.dtype) if row else torch.empty(0)
            numbers = read.double().numpy()
        else:
            numbers = numbers_of(row, len(places), entries.bits, zeros is None).astype(float)
            assert scales is not None
            at = np.arange(len(places))
            if zeros is None and entries.group:
                numbers *= scales[slot][at // entries.group]
            elif zeros is None:
                numbers *= scales[slot]
            elif isinstance(rows, PackedKeys):
                numbers = zeros[slot // 32][at] + scales[slot // 32][at] * numbers
            else:
                numbers = zeros[slot][at // 32] + scales[slot][at // 32] * numbers
        out[slot, places] = numbers
        if rows.rotated:
            out[slot] = sylvester(rows.dim) @ out[slot]
        if isinstance(rows, PackedKeys) and rows.spreads is not None:
            out[slot] *= rows.spreads[head].double().numpy()
        if isinstance(rows, PackedKeys) and rows.means is not None:
            out[slot] += rows.means[head].double().numpy()
        if pruned is None:
            continue
        gone = np.flatnonzero(kept == 0).tolist()
        size_of_signs = -(-len(gone) // 8)
        signs = all_signs[sign_at : sign_at + size_of_signs]
        sign_at += size_of_signs
        stats = pruned.stats[slot].double().tolist()
        for i, j in enumerate(gone):
            saliency = pruned.fill if pruned.recovery == "constant" else stats[0]
            if norms is None:
                out[slot, j] = saliency
                continue
            if pruned.recovery not in ("degenerate", "constant"):
                saliency = size_drawn(pruned.recovery, stats, mask, pruned.seed, j)
            negative = pruned.signs is not None and bit(signs, i)
            out[slot, j] = saliency * norms[head][j] * (-1 if negative else 1)
    return out


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
