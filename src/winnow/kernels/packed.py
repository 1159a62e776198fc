"""A packed prefix: slots whose channels or bits are partly gone, and what attention takes them for.

The definition the native kernels are held to. Every block has one format throughout; heads of different formats, and
slots that stay dense, are blocks of their own (`Parts`), whose partial results merge by log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from winnow.kernels.bits import row_bytes, unpack_rows
from winnow.kernels.segments import PrefixBlock, check_offsets, heads_of_slots

Recovery = Literal["degenerate", "gaussian", "exponential"]
GROUP = 32
"""Tokens that share a scale per channel (keys), channels that share a scale per token (values), as in KIVI."""
STEP = 32
"""Slots between the known beginnings of rows of different length."""
DRAWS = 256
"""Values that a random recovery draws from."""


@dataclass(frozen=True)
class Entries:
    """Numbers of S slots, T for each, one row after another: as they are or as integers with scales."""

    data: Tensor
    """[S, T] in the model's dtype where bits is 16, else uint8 [S, row_bytes(T, bits)]. Rows of different length are
    flat, each beginning on a whole byte (or number): [numbers] or uint8 [bytes]."""
    bits: int
    """16 (as they are), 8, 4 or 2."""
    scales: Tensor | None = None
    """In the model's dtype. [S]: number = scale·q with signed q. With `zeros`: number = zero + scale·u, unsigned u."""
    zeros: Tensor | None = None
    """Of the same shape as scales. Keys: [S / 32, T], one of every channel for 32 slots; values: [S, ceil(T / 32)],
    one of 32 neighbouring channels of a slot."""


@dataclass(frozen=True)
class Pruned:
    """Which channels every slot kept, and what stands for the others (SPARK)."""

    masks: Tensor
    """uint8 [S, ceil(D / 8)]: bit j % 8 of byte j // 8 is set where channel j is kept. Kept entries ascend by j."""
    stats: Tensor
    """In the model's dtype: [S, 1] μ, or [S, 2] μ and σ."""
    signs: Tensor | None = None
    """uint8 [S, ceil((D - T) / 8)]: bit i % 8 of byte i // 8 is set where the i-th pruned entry was negative. Flat,
    uint8 [bytes], where rows differ in length."""
    inverse_norms: Tensor | None = None
    """fp32 [H, D]: 1 / n_j, with the sign that pruned entries of channel j take. None: a pruned entry is μ itself."""
    recovery: Recovery = "degenerate"
    """Saliency of a pruned entry: μ, or drawn from N(μ, σ²) or Exp(1 / μ)."""
    seed: int = 0
    """Of the draws, below 2^32."""
    starts: Tensor | None = None
    """int64 [ceil(S / 32), 2] where slots kept different numbers of channels: the byte of `data`, and that of `signs`,
    at which the rows of slots 32·b … begin."""


@dataclass(frozen=True)
class PackedKeys:
    """Keys of S slots."""

    dim: int
    """D"""
    entries: Entries
    channels: Tensor | None = None
    """int16 [H, T]: the channels that all slots of a head kept, ascending; the others are zero (ThinK)."""
    pruned: Pruned | None = None


@dataclass(frozen=True)
class PackedValues:
    """Values of S slots."""

    dim: int
    """Dv"""
    entries: Entries
    pruned: Pruned | None = None


@dataclass(frozen=True)
class PackedBlock:
    """Kept slots of one format, head after head; at least one of keys and values is not dense. Immutable."""

    keys: PackedKeys
    values: PackedValues
    offsets: Tensor
    """[H + 1] int64 on the CPU: head h owns slots offsets[h] to offsets[h + 1]; multiples of 32 with grouped keys."""
    dtype: torch.dtype
    """Of the model."""

    def __post_init__(self) -> None:
        """Raise ValueError where the offsets are no partition of the slots."""
        check_offsets(self.offsets, self.slots)

    @property
    def slots(self) -> int:
        """S"""
        first = self.keys.pruned.masks if self.keys.pruned else self.keys.entries.data
        return len(first)

    @property
    def device(self) -> torch.device:
        return self.keys.entries.data.device

    @property
    def key_dim(self) -> int:
        return self.keys.dim

    @property
    def value_dim(self) -> int:
        return self.values.dim

    @property
    def starts(self) -> Tensor:
        """[H] int64: the first slot of head h."""
        return self.offsets[:-1]

    @property
    def stops(self) -> Tensor:
        """[H] int64: one past the last slot of head h."""
        return self.offsets[1:]

    @property
    def identity(self) -> int:
        """The same for all views of the same memory."""
        return id(self.keys.entries.data)

    def recover(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Slot indices [...] -> the keys [..., D] and values [..., Dv] in fp32 that attention takes them for."""
        flat = slots.flatten()
        head = heads_of_slots(self.offsets, flat)
        keys = _keys(self.keys, flat, head)
        values = _rows(self.values.entries, self.values.dim, self.values.pruned, flat, head)
        return keys.view(*slots.shape, self.key_dim), values.view(*slots.shape, self.value_dim)

    def bytes(self) -> dict[str, int]:
        """Bytes held, by kind."""
        kinds = {"indices": self.offsets.nbytes}
        for name, part in (("keys", self.keys), ("values", self.values)):
            entries, pruned = part.entries, part.pruned
            _add(kinds, name, (entries.data,))
            _add(kinds, "scales", (entries.scales, entries.zeros))
            if pruned is not None:
                _add(kinds, "masks", (pruned.masks,))
                _add(kinds, "statistics", (pruned.stats, pruned.inverse_norms))
                _add(kinds, "signs", (pruned.signs,))
                _add(kinds, "indices", (pruned.starts,))
        _add(kinds, "indices", (self.keys.channels,))
        return kinds


@dataclass(frozen=True)
class Parts:
    """Blocks of different formats that are one prefix: a head's slots are those of all parts, in their order."""

    parts: tuple[PackedBlock | PrefixBlock, ...]

    def __post_init__(self) -> None:
        """Raise ValueError unless the parts are of the same heads and sizes."""
        if (
            len({(len(part.offsets), part.key_dim, part.value_dim, part.dtype, part.device) for part in self.parts})
            != 1
        ):
            raise ValueError("the parts of a prefix must agree in heads, head sizes, dtype and device")

    @property
    def counts(self) -> Tensor:
        """[H] int64: slots of every head over all parts."""
        return torch.stack([part.stops - part.starts for part in self.parts]).sum(0)

    @property
    def offsets(self) -> Tensor:
        """[H + 1] int64: slots of all parts, head after head."""
        return torch.cat([torch.zeros(1, dtype=torch.int64), self.counts.cumsum(0)])

    @property
    def starts(self) -> Tensor:
        """[H] int64: the first slot of head h."""
        return self.offsets[:-1]

    @property
    def stops(self) -> Tensor:
        """[H] int64: one past the last slot of head h."""
        return self.offsets[1:]

    @property
    def identity(self) -> int:
        """The same for all views of the same memory."""
        return id(self.parts[0])

    def bytes(self) -> dict[str, int]:
        """Bytes held, by kind."""
        kinds: dict[str, int] = {}
        for part in self.parts:
            for kind, size in part.bytes().items():
                kinds[kind] = kinds.get(kind, 0) + size
        return kinds

    def recover(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Slot indices [...] -> the keys [..., D] and values [..., Dv] in fp32 that attention takes them for."""
        flat = slots.flatten()
        head = heads_of_slots(self.offsets, flat)
        inside = flat - self.starts.to(flat.device)[head]
        first = self.parts[0]
        keys = torch.empty(len(flat), first.key_dim, device=first.device)
        values = torch.empty(len(flat), first.value_dim, device=first.device)
        for part in self.parts:
            starts, counts = part.starts.to(flat.device), (part.stops - part.starts).to(flat.device)
            mine = (inside >= 0) & (inside < counts[head])
            keys[mine], values[mine] = part.recover(starts[head[mine]] + inside[mine])
            inside = inside - counts[head]
        return keys.view(*slots.shape, first.key_dim), values.view(*slots.shape, first.value_dim)


Block = PrefixBlock | PackedBlock | Parts
"""The prefix of one sequence in one layer, however it is written."""


def parts_of(block: Block) -> tuple[PackedBlock | PrefixBlock, ...]:
    """The blocks of one format each that a prefix consists of."""
    return block.parts if isinstance(block, Parts) else (block,)


# --- recovering ----------------------------------------------------------------------------------------------------


def _keys(keys: PackedKeys, slots: Tensor, head: Tensor) -> Tensor:
    """Keys [n, D] fp32 of slots [n]."""
    if keys.channels is None:
        return _rows(keys.entries, keys.dim, keys.pruned, slots, head, grouped_slots=True)
    channels = keys.channels.to(torch.int64)
    kept = _rows(keys.entries, channels.shape[1], None, slots, head, grouped_slots=True)
    return kept.new_zeros(len(slots), keys.dim).scatter_(1, channels[head], kept)


def _rows(
    entries: Entries,
    dim: int,
    pruned: Pruned | None,
    slots: Tensor,
    head: Tensor,
    grouped_slots: bool = False,
) -> Tensor:
    """Rows [n, dim] fp32 of slots [n]."""
    if pruned is None:
        data = entries.data[slots]
        return _numbers(data, dim, entries, slots, grouped_slots)
    mask = mask_bits(pruned.masks[slots], dim)
    counts = mask.sum(1)
    most = int(counts.max()) if len(counts) else 0
    data, signs = _gather(entries, pruned, slots, most, dim)
    ragged = None if pruned.starts is None else counts
    kept = (
        _numbers(data, most, entries, slots, grouped_slots, ragged) if most else data.new_zeros(len(slots), 1).float()
    )
    place = (mask.cumsum(1) - 1).clamp(min=0)
    return torch.where(mask, kept.gather(1, place), _pruned_entries(pruned, slots, head, mask, signs))


def _numbers(
    data: Tensor, count: int, entries: Entries, slots: Tensor, grouped_slots: bool, counts: Tensor | None = None
) -> Tensor:
    """Stored rows -> fp32 [n, count]; rows of different length have `counts` [n] numbers each."""
    if entries.bits == 16:
        return data.float()
    assert entries.scales is not None
    numbers = unpack_rows(data, count, entries.bits, entries.zeros is None, counts).float()
    if entries.zeros is None:
        return numbers * entries.scales[slots].float()[:, None]
    if grouped_slots:
        return entries.zeros[slots // GROUP].float() + entries.scales[slots // GROUP].float() * numbers
    scales, zeros = (
        each[slots].float().repeat_interleave(GROUP, 1)[:, :count] for each in (entries.scales, entries.zeros)
    )
    return zeros + scales * numbers


def _gather(entries: Entries, pruned: Pruned, slots: Tensor, most: int, dim: int) -> tuple[Tensor, Tensor | None]:
    """Rows of entries as if all had `most`, and rows of signs; what is beyond a row's own is never looked at."""
    if pruned.starts is None:
        return entries.data[slots], None if pruned.signs is None else pruned.signs[slots]
    size, bits = entries.data.element_size(), 8 * entries.data.element_size() if entries.bits == 16 else entries.bits
    counts = mask_bits(pruned.masks, dim).sum(1)
    data_bytes, sign_bytes = -(-counts * bits // 8), -(-(dim - counts) // 8)
    starts = (data_bytes.cumsum(0) - data_bytes)[slots] // size
    data = _flat_rows(entries.data, starts, most if entries.bits == 16 else row_bytes(most, bits))
    if pruned.signs is None:
        return data, None
    starts = (sign_bytes.cumsum(0) - sign_bytes)[slots]
    return data, _flat_rows(pruned.signs, starts, -(-dim // 8))


def _flat_rows(flat: Tensor, starts: Tensor, width: int) -> Tensor:
    """[n, width] from flat[starts[i]:]; the end of `flat` is repeated."""
    index = starts[:, None] + torch.arange(width, device=flat.device)
    return flat[index.clamp(max=max(len(flat) - 1, 0))] if len(flat) else flat.new_zeros(index.shape)


def _pruned_entries(pruned: Pruned, slots: Tensor, head: Tensor, mask: Tensor, signs: Tensor | None) -> Tensor:
    """[n, D] fp32: what stands in for an entry that is gone."""
    mean = pruned.stats[slots, 0].float()[:, None]
    if pruned.inverse_norms is None:
        return mean.expand(mask.shape)
    saliency = mean
    if pruned.recovery != "degenerate":
        drawn = draws(pruned.recovery).to(mask.device)[draw_indices(pruned.masks[slots], pruned.seed, mask.shape[1])]
        saliency = mean * drawn
        if pruned.recovery == "gaussian":
            saliency = mean + pruned.stats[slots, 1].float()[:, None] * drawn
    entry = saliency * pruned.inverse_norms[head]
    if signs is None:
        return entry
    place = ((~mask).cumsum(1) - 1).clamp(min=0)
    if not signs.shape[1]:
        return entry
    negative = mask_bits(signs, signs.shape[1] * 8).gather(1, place.clamp(max=signs.shape[1] * 8 - 1))
    return torch.where(negative, -entry, entry)


def mask_bits(packed: Tensor, count: int) -> Tensor:
    """uint8 [n, bytes] -> bool [n, count], the lowest bit of the first byte first."""
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed[..., None] >> shifts) & 1).flatten(-2)[..., :count].bool()


@cache
def draws(recovery: Recovery) -> Tensor:
    """fp32 [256]: equally likely values of N(0, 1) or Exp(1), with exactly its mean and, for the normal, its variance.

    A table in place of a random generator: the same draws on every backend.
    """
    share = (torch.arange(DRAWS, dtype=torch.float64) + 0.5) / DRAWS
    if recovery == "gaussian":
        normal = torch.special.ndtri(share)
        return (normal / normal.square().mean().sqrt()).float()
    exponential = -torch.log1p(-share)
    return (exponential / exponential.mean()).float()


def draw_indices(masks: Tensor, seed: int, dim: int) -> Tensor:
    """[n, D] int64 below 256: which value channel j of a slot draws, hashed from the slot's own mask and the seed.

    h = seed; for every 32-bit word w of the mask (zero-padded, little-endian): h = mix(h ^ w); j draws
    mix(h + j·0x9e3779b9) >> 24, all modulo 2^32.
    """
    padded = torch.nn.functional.pad(masks, (0, -masks.shape[1] % 4)).to(torch.int64).view(len(masks), -1, 4)
    words = (padded << torch.tensor([0, 8, 16, 24], device=masks.device)).sum(-1)
    state = torch.full((len(masks),), seed & 0xFFFFFFFF, dtype=torch.int64, device=masks.device)
    for word in words.unbind(1):
        state = _mix(state ^ word)
    channel = torch.arange(dim, device=masks.device) * 0x9E3779B9
    return _mix((state[:, None] + channel) & 0xFFFFFFFF) >> 24


def _mix(state: Tensor) -> Tensor:
    """The finaliser of MurmurHash3 on 32-bit numbers."""
    state = state ^ (state >> 16)
    state = (state * 0x85EBCA6B) & 0xFFFFFFFF
    state = state ^ (state >> 13)
    state = (state * 0xC2B2AE35) & 0xFFFFFFFF
    return state ^ (state >> 16)


def _add(kinds: dict[str, int], kind: str, tensors: Iterable[Tensor | None]) -> None:
    size = sum(tensor.nbytes for tensor in tensors if tensor is not None)
    if size:
        kinds[kind] = kinds.get(kind, 0) + size
