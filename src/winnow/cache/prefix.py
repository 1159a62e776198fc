"""The compressed prompt of one sequence in one layer: immutable, shared by any number of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from winnow.allocate import Allocation
from winnow.composition.method import Method, Rank
from winnow.errors import CacheError
from winnow.kernels.formats import Block, DenseBlock
from winnow.kernels.formats.serialize import take_apart
from winnow.store import Earlier
from winnow.transfers import sent
from winnow.view import LayerView, QueryMoments


@dataclass(frozen=True, eq=False)
class Prefix:
    """Kept slots of every KV head one after another. Nothing writes to it after `next_prefix`."""

    block: Block
    """The slots as kernels read them: packed keys and values, and where each head begins."""
    positions: Tensor
    """[S] int32, the kept positions of each head, ascending, counted without padding."""
    length: int
    """N, the tokens that it was made from: the prompt's, and those that were folded into it since."""
    prompt: int
    """Tokens of the prompt, which the first prefix of a row was made from."""
    carried: Tensor | None = None
    """[S] fp32, what the slots scored so far, where the scorer accumulates and the tail is to be folded."""
    moments: QueryMoments | None = None
    """Moments of all queries so far, where the scorer carries that on and the tail is to be folded."""

    def slots(self) -> list[int]:
        """Slots of every KV head that are held, whether this view of them reads them all or not."""
        return [int(n) for n in self.block.offsets.diff()]

    def kept(self) -> list[Tensor]:
        """Positions that each KV head reads, ascending, int64."""
        bounds = zip(self.block.starts.tolist(), self.block.stops.tolist(), strict=True)
        positions = self.positions.to(torch.int64)
        return [positions[start:stop] for start, stop in bounds]

    def coalitions(self, masks: Tensor, window: int) -> list[Prefix]:
        """Views of this prefix, one per row of masks [C, H] bool; equal rows share a view, all share the memory.

        Where a mask is true, the head reads what this prefix reads; elsewhere only what it has of the last `window`
        tokens of the prompt, which are its last slots because positions ascend.

        Raises:
            CacheError: the slots are packed.
        """
        dense = self.block
        if not isinstance(dense, DenseBlock):
            raise CacheError("coalitions need dense slots; leave spark, think, bits and kivi out of the method.")
        recent = self._slots_from(self.length - window)
        patterns, which = masks.cpu().unique(dim=0, return_inverse=True)
        starts = torch.where(patterns, dense.starts, dense.stops - recent)
        views = [replace(self, block=replace(dense, later_starts=each)) for each in starts]
        return [views[index] for index in which.tolist()]

    def _slots_from(self, first: int) -> Tensor:
        """[H] int64 on the CPU: slots of position `first` and later that each head reads."""
        late = self.positions >= first
        before = torch.cat([late.new_zeros(1, dtype=torch.int64), late.cumsum(0)])
        # All heads in one look at the device.
        bounds = torch.stack([self.block.starts, self.block.stops]).to(before.device)
        starts, stops = before[bounds].cpu()
        return stops - starts

    def bytes(self) -> dict[str, int]:
        """Bytes held, by kind."""
        kinds = self.block.bytes()
        kinds |= {"indices": kinds["indices"] + self.positions.nbytes}
        if self.carried is not None:
            kinds["statistics"] = kinds.get("statistics", 0) + self.carried.nbytes
        return kinds

    def tensors(self) -> list[Tensor]:
        """All that it holds."""
        own = [self.positions, self.carried, *(self.moments or ())]
        return [*take_apart(self.block).tensors.values(), *(each for each in own if isinstance(each, Tensor))]

    def view_bytes(self) -> int:
        """Bytes that are this view's own, where it is one."""
        own = self.block.later_starts if isinstance(self.block, DenseBlock) else None
        return 0 if own is None else own.nbytes

    def __deepcopy__(self, memo: dict[int, Any]) -> Prefix:
        # Immutable, so a fork of a cache shares it.
        return self


class Continued(NamedTuple):
    """A prefix whose slots are the first columns of a view."""

    prefix: Prefix
    slots: Tensor
    """[H, M] int64: which slot each of the first M columns is, -1 where a column is absent."""


def next_prefix(
    method: Method, view: LayerView, allocation: Allocation, old: Continued | None, rank: Rank, carries: bool
) -> Prefix:
    """Score, allocate, select and pack one layer of one sequence.

    old: the prefix that this one continues, if there is one. rank: see `Method.select`. carries: keep what the slots
    scored, for a scorer that accumulates.
    """
    earlier = None if old is None else Earlier(old.prefix.block, old.slots)
    carried = moments = None
    if carries:
        ranking = rank(method.scorer, view)
        carried, moments, rank = ranking.carried, ranking.moments, lambda *_: ranking
    selection = method.select(view, allocation, rank, earlier)
    window = min(method.scorer.window, view.keys.shape[1])
    block = method.store.pack(view.stored, selection, window, earlier)
    columns = sent(selection.positions, view.keys.device)
    positions, length, prompt = columns, view.keys.shape[1], view.keys.shape[1]
    if view.positions is not None:
        positions, length = view.positions[selection.heads(columns.device), columns], int(view.positions[0, -1]) + 1
        prompt = 0 if old is None else old.prefix.prompt
    return Prefix(
        block,
        positions.to(torch.int32),
        length,
        prompt,
        None if carried is None else carried[selection.heads(columns.device), columns],
        moments,
    )
