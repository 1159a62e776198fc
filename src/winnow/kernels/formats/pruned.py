"""Slots that keep channels of their own each, and a statistic in place of the others (SPARK)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import Tensor

from winnow.kernels.formats.bits import row_bytes, unpack_flags
from winnow.kernels.formats.draws import STATISTICS, Recovery, distribution, draw_indices
from winnow.kernels.formats.entries import Entries
from winnow.kernels.formats.format import Format
from winnow.kernels.formats.schema import FINITE, Demand, Rule, Side, cat_present, take_rows
from winnow.transfers import sent

_LARGEST = torch.finfo(torch.float32).max
_MOST_STATISTICS = max(STATISTICS.values())
STEP = 32
"""Slots between the known beginnings of rows of different length."""


@dataclass(frozen=True)
class Pruned(Format, name="pruned"):
    """The channels that every slot kept, and what stands for the others."""

    masks: Tensor
    """uint8 [S, ceil(D / 8)]: bit j % 8 of byte j // 8 is set where channel j is kept. Kept entries ascend by j."""
    stats: Tensor
    """In the model's dtype: [S, 0 to 3], what the recovery needs (`draws.STATISTICS`)."""
    signs: Tensor | None = None
    """uint8 [S, ceil((D - T) / 8)]: bit i % 8 of byte i // 8 is set where the i-th pruned entry was negative. Flat,
    uint8 [bytes], where rows differ in length."""
    inverse_norms: Tensor | None = None
    """fp32 [H, D]: 1 / n_j, with the sign that pruned entries of channel j take. None: a pruned entry is μ itself, or
    the constant, whatever else is said."""
    recovery: Recovery = "degenerate"
    """Saliency of a pruned entry: μ; drawn from N(μ, σ²) or Exp(1 / μ), with statistics μ, σ or μ; from these between 0
    and c, with statistics μ, σ, c or μ, c; or `fill`. Where nothing lies between 0 and c it is μ."""
    seed: int = 0
    """Seed of the draws, below 2^32."""
    starts: Tensor | None = None
    """int64 [ceil(S / 32), 2] where slots kept different numbers of channels: the byte of `data`, and that of `signs`,
    at which the rows of slots 32·b … begin."""
    fill: float = 0.0
    """The constant."""

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
        if self.recovery == "constant":
            mean = torch.full((len(slots), 1), self.fill, dtype=torch.float32, device=mask.device)
        else:
            mean = self.stats[slots, :1].float()
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
        if self.recovery in ("degenerate", "constant"):
            return mean
        drawn = distribution(self.recovery, self.stats[slots])
        sizes = drawn.offset + drawn.factor * drawn.table[draw_indices(self.masks[slots], self.seed, dim, drawn)]
        return torch.where(drawn.possible > 0, sizes, mean)

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

    def rules(self, side: Side, entries: Entries, dim: int) -> Iterator[Rule]:
        """Schema of the masks of a side, and of what stands for the entries that are gone.

        How many channels a slot's mask keeps is looked at in files only: kernels read no further than tensors go.
        """
        if self.recovery not in get_args(Recovery):
            raise ValueError(f"unknown recovery {self.recovery!r}")
        if not 0 <= self.seed < 1 << 32:
            raise ValueError(f"the seed of a recovery is {self.seed} and must be in 0 ... {(1 << 32) - 1}")
        if not abs(self.fill) <= _LARGEST:
            raise ValueError(f"the constant of a recovery is {self.fill} and must be finite in fp32")
        fitting = Demand("must keep as many channels as there are entries and signs", self._fits(entries, dim))
        yield side.rule("masks", self.masks, torch.uint8, (side.slots, row_bytes(dim, 1)), content=(fitting,))
        statistics = max(min(self.stats.shape[-1], _MOST_STATISTICS), STATISTICS[self.recovery])
        yield side.rule("statistics", self.stats, side.dtype, (side.slots, statistics), content=(FINITE,))
        if self.inverse_norms is not None:
            norms = self.inverse_norms
            yield side.rule("norms", norms, torch.float32, (side.heads, dim), content=(FINITE,))
        if self.signs is not None:
            shape = (side.slots, None) if self.starts is None else (None,)
            yield side.rule("signs", self.signs, torch.uint8, shape)
        if self.starts is not None:
            ends = torch.tensor([entries.data.nbytes, 0 if self.signs is None else self.signs.nbytes], device="cpu")
            inside = Demand(
                "must lie inside their entries and signs",
                lambda starts: ((starts >= 0) & (starts <= sent(ends, starts.device))).all(),
            )
            yield side.rule("starts", self.starts, torch.int64, (-(-side.slots // STEP), 2), (inside,))

    def _fits(self, entries: Entries, dim: int) -> Callable[[Tensor], bool]:
        """A look at all masks: no channels beyond the last, and rows of entries and signs where they say."""

        def holds(masks: Tensor) -> bool:
            flags = unpack_flags(masks, 8 * masks.shape[1])
            if bool(flags[:, dim:].any()):
                return False
            counts = flags.sum(1)
            fits = self._fits_rows if self.starts is None else self._fits_flat
            return fits(entries, counts, dim)

        return holds

    def _fits_rows(self, entries: Entries, counts: Tensor, dim: int) -> bool:
        """Rows of one length: as many entries, and signs of the others, in every slot."""
        if not len(counts):
            return True
        kept = int(counts[0])
        width = kept if entries.bits == 16 else row_bytes(kept, entries.bits)
        if bool((counts != kept).any()) or entries.data.shape[1] != width:
            return False
        return self.signs is None or self.signs.shape[1] == row_bytes(dim - kept, 1)

    def _fits_flat(self, entries: Entries, counts: Tensor, dim: int) -> bool:
        """Rows of different length: they begin where their own lengths say, and fill their arrays."""
        assert self.starts is not None
        data, signs = row_sizes(counts, dim, entries.bits_held).sum(0).tolist()
        filled = data == entries.data.nbytes and (self.signs is None or signs == self.signs.nbytes)
        return filled and torch.equal(known_starts(self, entries, counts, dim), self.starts)


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
    return torch.stack([row_bytes(counts, bits), row_bytes(dim - counts, 1)], 1)


def _row_starts(counts: Tensor, dim: int, bits: int) -> Tensor:
    """int64 [S, 2]: the bytes at which rows of counts [S] kept numbers, and of the others' signs, begin."""
    sizes = row_sizes(counts, dim, bits)
    return sizes.cumsum(0) - sizes


def _flat_rows(flat: Tensor, starts: Tensor, width: int) -> Tensor:
    """[n, width] from flat[starts[i]:]; the end of `flat` is repeated."""
    index = starts[:, None] + torch.arange(width, device=flat.device)
    return flat[index.clamp(max=max(len(flat) - 1, 0))] if len(flat) else flat.new_zeros(index.shape)


def _ranks(mask: Tensor) -> Tensor:
    """int64 [n, D]: how many marked channels of a row come before each of the marked ones."""
    return (mask.cumsum(1) - 1).clamp(min=0)
