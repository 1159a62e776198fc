"""Slots that keep channels of their own each, and a statistic in place of the others (SPARK)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import Tensor

from winnow.kernels.formats.bits import row_bytes, unpack_flags
from winnow.kernels.formats.draws import Recovery, draw_indices, draws
from winnow.kernels.formats.entries import Entries
from winnow.kernels.formats.format import Format
from winnow.kernels.formats.tensors import Side, cat_present, take_rows

STEP = 32
"""Slots between the known beginnings of rows of different length."""


@dataclass(frozen=True)
class Pruned(Format, name="pruned"):
    """The channels that every slot kept, and what stands for the others."""

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
    """Seed of the draws, below 2^32."""
    starts: Tensor | None = None
    """int64 [ceil(S / 32), 2] where slots kept different numbers of channels: the byte of `data`, and that of `signs`,
    at which the rows of slots 32·b … begin."""

    def recover(self, entries: Entries, dim: int, slots: Tensor, head: Tensor) -> Tensor:
        """Rows [n, D] fp32 of slots [n] of heads [n], given the kept entries of all slots."""
        mask = unpack_flags(self.masks[slots], dim)
        counts = mask.sum(1)
        most = int(counts.max()) if len(counts) else 0
        rows, signs = self._rows(entries, slots, most, dim)
        stand_ins = self._stand_ins(slots, head, mask, signs)
        if not most:
            return stand_ins
        kept = entries.decode(rows, slots, most, None if self.starts is None else counts)
        return torch.where(mask, kept.gather(1, _ranks(mask)), stand_ins)

    def _rows(self, entries: Entries, slots: Tensor, most: int, dim: int) -> tuple[Tensor, Tensor | None]:
        """Rows of entries as if all had `most`, and rows of signs; what is beyond a row's own is never looked at."""
        if self.starts is None:
            return entries.data[slots], None if self.signs is None else self.signs[slots]
        starts = _row_starts(unpack_flags(self.masks, dim).sum(1), dim, entries.bits_held)[slots]
        width = most if entries.bits == 16 else row_bytes(most, entries.bits)
        rows = _flat_rows(entries.data, starts[:, 0] // entries.data.element_size(), width)
        return rows, None if self.signs is None else _flat_rows(self.signs, starts[:, 1], row_bytes(dim, 1))

    def _stand_ins(self, slots: Tensor, head: Tensor, mask: Tensor, signs: Tensor | None) -> Tensor:
        """[n, D] fp32: the numbers that entries are taken for that are gone."""
        mean = self.stats[slots, 0].float()[:, None]
        if self.inverse_norms is None:
            return mean.expand(mask.shape)
        entry = self._saliencies(slots, mean, mask.shape[1]) * self.inverse_norms[head]
        if signs is None or not signs.shape[1]:
            return entry
        held = 8 * signs.shape[1]
        negative = unpack_flags(signs, held).gather(1, _ranks(~mask).clamp(max=held - 1))
        return torch.where(negative, -entry, entry)

    def _saliencies(self, slots: Tensor, mean: Tensor, dim: int) -> Tensor:
        """[n, D] or [n, 1] fp32, of entries that are gone."""
        if self.recovery == "degenerate":
            return mean
        drawn = draws(self.recovery).to(mean.device)[draw_indices(self.masks[slots], self.seed, dim)]
        return mean + self.stats[slots, 1].float()[:, None] * drawn if self.recovery == "gaussian" else mean * drawn

    def take(self, slots: Tensor, sign_sizes: Tensor | None) -> Pruned:
        """Masks, statistics and signs of slots [n] as they are written, in that order, without `starts`.

        sign_sizes: [S] bytes of every row of signs, where rows differ in length.
        """
        signs = None if self.signs is None else take_rows(self.signs, slots, sign_sizes)
        return replace(self, masks=self.masks[slots], stats=self.stats[slots], signs=signs, starts=None)

    def counted(self) -> Iterator[tuple[str, Tensor | None]]:
        """Every tensor beside the kind of bytes that it counts as."""
        yield from (("masks", self.masks), ("statistics", self.stats), ("statistics", self.inverse_norms))
        yield from (("signs", self.signs), ("indices", self.starts))

    def check(self, side: Side, entries: Entries, dim: int) -> None:
        """Raise ValueError where a tensor has the wrong shape, dtype or place.

        How many channels a slot's mask keeps is not looked at: the kernels read no further than the tensors go.
        """
        if self.recovery not in get_args(Recovery):
            raise ValueError(f"unknown recovery {self.recovery!r}")
        name, slots = side.name, side.slots
        side.check(f"masks of {name}", self.masks, torch.uint8, (slots, row_bytes(dim, 1)))
        statistics = 2 if self.recovery == "gaussian" else max(self.stats.shape[-1], 1)
        side.check(f"statistics of {name}", self.stats, side.dtype, (slots, statistics))
        if self.inverse_norms is not None:
            side.check(f"norms of {name}", self.inverse_norms, torch.float32, (side.heads, dim))
        if self.signs is not None:
            shape = (slots, None) if self.starts is None else (None,)
            side.check(f"signs of {name}", self.signs, torch.uint8, shape)
        if self.starts is not None:
            self._check_starts(side, entries, self.starts)

    def _check_starts(self, side: Side, entries: Entries, starts: Tensor) -> None:
        side.check(f"starts of {side.name}", starts, torch.int64, (-(-side.slots // STEP), 2))
        ends = [entries.data.nbytes] if self.signs is None else [entries.data.nbytes, self.signs.nbytes]
        starts = starts[:, : len(ends)]
        if bool((starts < 0).any() or (starts > torch.tensor(ends, device=starts.device)).any()):
            raise ValueError(f"starts of {side.name} must lie inside their entries and signs")


def join_pruned(pieces: Sequence[Pruned]) -> Pruned:
    """Masks, statistics and signs of consecutive slots as one, without `starts`."""
    return replace(
        pieces[0],
        masks=torch.cat([each.masks for each in pieces]),
        stats=torch.cat([each.stats for each in pieces]),
        signs=cat_present([each.signs for each in pieces]),
    )


def known_starts(pruned: Pruned, entries: Entries, counts: Tensor, dim: int) -> Tensor:
    """The `starts` of slots that kept counts [S] of D channels."""
    starts = _row_starts(counts, dim, entries.bits_held)[::STEP].clone()
    if pruned.signs is None:
        starts[:, 1] = 0
    return starts


def row_sizes(counts: Tensor, dim: int, bits: int) -> Tensor:
    """int64 [S, 2]: the bytes that rows of counts [S] kept numbers, and of the others' signs, take."""
    return torch.stack([-(-counts * bits // 8), -(-(dim - counts) // 8)], 1)


def _row_starts(counts: Tensor, dim: int, bits: int) -> Tensor:
    """int64 [S, 2]: the bytes at which they begin."""
    sizes = row_sizes(counts, dim, bits)
    return sizes.cumsum(0) - sizes


def _flat_rows(flat: Tensor, starts: Tensor, width: int) -> Tensor:
    """[n, width] from flat[starts[i]:]; the end of `flat` is repeated."""
    index = starts[:, None] + torch.arange(width, device=flat.device)
    return flat[index.clamp(max=max(len(flat) - 1, 0))] if len(flat) else flat.new_zeros(index.shape)


def _ranks(mask: Tensor) -> Tensor:
    """int64 [n, D]: how many marked channels of a row come before each of the marked ones."""
    return (mask.cumsum(1) - 1).clamp(min=0)
