"""ThinK: Thinner Key Cache by Query-Driven Pruning (Xu et al. 2024, arXiv 2407.21018)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from winnow.errors import MethodError
from winnow.kernels.formats import PackedBlock
from winnow.kernels.gpu import support as gpu
from winnow.parameters import check_count, check_number, meaning
from winnow.select import Selection
from winnow.store.channels import ChannelChoice, Channels, Width, whole_part, window_queries
from winnow.transfers import sent
from winnow.view import LayerView

_AT_ONCE = 1024
"""Slots that are squared together: few enough to stay near the processor."""


@dataclass(frozen=True)
class Think(Channels):
    """Drops, in all slots of a head, the key channels that the head's last queries and its keys use least.

    The score of channel j is the mean of q_j² over window and group, times the mean of k_j² over the kept slots. The
    ⌊λD⌋ lowest are dropped; of equal scores, the lower channel stays. The scorer's window stays dense.
    """

    ratio: float = field(default=0.5, metadata=meaning("λ, the share of key channels to drop"))
    queries: int = field(default=32, metadata=meaning("number of last queries that decide which channels matter"))

    def __post_init__(self) -> None:
        check_number(self, "ratio", 0, 1)
        check_count(self, "queries", 1)
        if not 0 < self.ratio < 1:
            raise MethodError(
                f"think: ratio must lie between 0 and 1, not {self.ratio}; 0.5 drops half of the channels."
            )

    @property
    def window_dense(self) -> bool:
        return True

    @property
    def compares_slots(self) -> bool:
        return False

    def queries_needed(self, length: int) -> int:
        return min(self.queries, length)

    def kept(self, dim: int) -> int:
        """T, the channels that stay of `dim`."""
        return dim - whole_part(self.ratio, dim)

    def choose(self, view: LayerView, selection: Selection, like: PackedBlock | None) -> ChannelChoice:
        if like is not None and like.keys.channels is not None:
            return ChannelChoice(like.keys.channels)
        # In double precision: devices add up in different orders, and must choose the same channels.
        asked = window_queries(view, self.queries).double().square().mean(1)
        counts = sent(selection.offsets.diff(), view.keys.device)
        held = _squares(view.keys, selection) / counts.clamp(min=1)[:, None]
        order = (asked * held).float().sort(dim=1, descending=True, stable=True).indices
        return ChannelChoice(order[:, : self.kept(view.keys.shape[-1])].sort(1).values.to(torch.int16))

    def widths(self, key_dim: int, value_dim: int, itemsize: int) -> tuple[Width, Width]:
        return Width(self.kept(key_dim)), Width(value_dim)

    def head_bytes(self, key_dim: int) -> int:
        return self.kept(key_dim) * torch.int16.itemsize


def _squares(keys: Tensor, selection: Selection) -> Tensor:
    """fp64 [H, D]: sums of squares of the selected rows of keys [H, N, D], head by head."""
    device = keys.device
    if gpu.packs(keys):
        # Imported where it serves: Triton takes a second, and there may be none.
        from winnow.kernels.gpu.summing import channel_sums

        return channel_sums(keys, selection.offsets, selection.positions.to(device)).squares
    columns = selection.positions.to(device).split(selection.offsets.diff().tolist())
    return torch.stack([_squares_of(rows, mine) for rows, mine in zip(keys.detach(), columns, strict=True)])


def _squares_of(rows: Tensor, mine: Tensor) -> Tensor:
    """fp64 [D]: sum of squares of the columns [S] of rows [N, D]."""
    total = torch.zeros(rows.shape[-1], dtype=torch.float64, device=rows.device)
    for some in mine.split(_AT_ONCE):
        total += rows[some].double().square_().sum(0)
    return total
