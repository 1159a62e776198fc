"""ThinK: Thinner Key Cache by Query-Driven Pruning (Xu et al. 2024, arXiv 2407.21018)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from winnow.errors import MethodError
from winnow.kernels.formats import PackedBlock
from winnow.kernels.formats.columns import take_columns
from winnow.kernels.formats.entries import Entries
from winnow.kernels.formats.packed import PackedRows
from winnow.parameters import check_count, check_number, meaning
from winnow.select import Selection
from winnow.store.base import gathered
from winnow.store.channels import ChannelChoice, Channels, Slots, Width, dropped, window_queries
from winnow.view import LayerView


@dataclass(frozen=True)
class Think(Channels):
    """Every head gives up the key channels that its window's queries and its keys use least, for all slots.

    Score of channel j: mean of q_j² over window and group times mean of k_j² over the kept slots. The ⌊λD⌋ lowest go;
    equal scores keep the lower channel. The scorer's window stays dense.
    """

    ratio: float = field(default=0.5, metadata=meaning("λ, the share of key channels to drop"))
    queries: int = field(default=32, metadata=meaning("last queries that say which channels matter"))

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

    def queries_needed(self, length: int) -> int:
        return min(self.queries, length)

    def kept(self, dim: int) -> int:
        """T, the channels that stay of `dim`."""
        return dim - dropped(self.ratio, dim)

    def choose(self, view: LayerView, selection: Selection, like: PackedBlock | None) -> ChannelChoice:
        if like is not None and like.keys.channels is not None:
            return _Columns(like.keys.channels)
        heads, _, dim = view.keys.shape
        asked = window_queries(view, self.queries).square().mean(1)
        counts = selection.offsets.diff().to(view.keys.device)
        squares = gathered(view.keys, selection).float().square_()
        held = (
            asked.new_zeros(heads, dim).index_add_(0, selection.heads(view.keys.device), squares)
            / counts.clamp(min=1)[:, None]
        )
        order = (asked * held).sort(dim=1, descending=True, stable=True).indices
        return _Columns(order[:, : self.kept(dim)].sort(1).values.to(torch.int16))

    def widths(self, key_dim: int, value_dim: int, itemsize: int) -> tuple[Width, Width]:
        return Width(self.kept(key_dim)), Width(value_dim)

    def head_bytes(self, key_dim: int) -> int:
        return self.kept(key_dim) * torch.int16.itemsize


@dataclass(frozen=True)
class _Columns(ChannelChoice):
    channels: Tensor
    """int16 [H, T], ascending"""

    def keys(self, slots: Slots) -> PackedRows:
        kept = take_columns(slots.keys, self.channels, slots.head)
        # A copy: every block holds, and counts, its own.
        return PackedRows(Entries(kept, 16), channels=self.channels.clone())
