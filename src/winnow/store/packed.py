"""Slots with fewer channels, fewer bits, or both: any choice of channels in any precision."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from winnow.errors import MethodError
from winnow.heads import HeadScores
from winnow.kernels.formats import Block, PackedBlock, Part, Parts
from winnow.kernels.formats.heads import heads_of_slots
from winnow.kernels.formats.packed import PackedKeys, PackedRows, PackedValues, join_rows
from winnow.select import Selection
from winnow.store.base import OFFSET_BYTES, POSITION_BYTES, Cost, Earlier, LayerShape, Store
from winnow.store.channels import AllChannels, ChannelChoice, Channels, Slots, check_finite, packed_part
from winnow.store.dearer import warn_if_dearer
from winnow.store.dense import dense_block
from winnow.store.precision import AsIs, Precision
from winnow.store.written import written_before
from winnow.view import LayerView

_ALL, _AS_IS = AllChannels(), AsIs()
_AT_ONCE = 8192
"""Slots that pass through fp32 together: few enough to stay near the processor."""


@dataclass(frozen=True)
class Packed(Store):
    """Kept slots as blocks of one format each: heads of equal bits together, slots that stay dense apart.

    Raises MethodError for channels and precision that do not go together.
    """

    channels: Channels = _ALL
    precision: Precision = _AS_IS

    def __post_init__(self) -> None:
        if self.channels.per_slot and self.precision.slots_together > 1:
            raise MethodError(
                "kivi scales every key channel over 32 slots, but after spark each slot has channels of its own; "
                "combine spark with bits, or kivi with think."
            )

    def for_model(self, name: str, heads: tuple[int, ...]) -> Store:
        return replace(self, precision=self.precision.for_model(name, heads))

    def with_scores(self, scores: HeadScores) -> Store:
        return replace(self, precision=self.precision.with_scores(scores))

    def queries_needed(self, length: int) -> int:
        return self.channels.queries_needed(length)

    def pack(self, view: LayerView, selection: Selection, window: int, earlier: Earlier | None = None) -> Block:
        heads = view.keys.shape[0]
        counts = self._packed_counts(selection.offsets.diff(), window)
        choice = self.channels.choose(view, selection, packed_part(earlier.block if earlier else None))
        bits = self.precision.bits(view.layer, heads)
        parts: list[Part] = []
        for width in bits.unique().tolist():
            part = _first_slots(selection, torch.where(bits == width, counts, 0))
            if len(part.positions):
                parts.append(self._part(view, part, int(width), choice, earlier))
        warn_if_dearer(self.channels, parts)
        rest = _last_slots(selection, selection.offsets.diff() - counts)
        if len(rest.positions) or not parts:
            parts.append(dense_block(view, rest))
        return parts[0] if len(parts) == 1 else Parts(tuple(parts))

    @property
    def separable(self) -> bool:
        return self.precision.slots_together == 1

    def cost(self, shape: LayerShape) -> Cost:
        """Exact but where slots keep different numbers of channels, all counted as the dearest, or fill no group."""
        bits: list[int] = self.precision.bits(shape.layer, shape.heads).tolist()
        slot = sum(self._slot_bytes(shape, width) for width in bits) / shape.heads
        # Slots that fill no group stay dense, too, but how many is known only once heads know theirs.
        apart = self._apart(shape.window)
        blocks = len(set(bits)) * self._block_bytes(shape) + (apart > 0) * OFFSET_BYTES * (shape.heads + 1)
        return Cost(blocks + apart * shape.heads * (_dense_bytes(shape) - slot), slot + POSITION_BYTES)

    def bytes(self, view: LayerView, selection: Selection, window: int, earlier: Earlier | None = None) -> float:
        if self.channels.varies:
            return super().bytes(view, selection, window, earlier)
        heads, _, dim = view.keys.shape
        shape = LayerShape(view.layer, heads, dim, view.values.shape[-1], view.keys.element_size(), window)
        counts = selection.offsets.diff()
        packed = self._packed_counts(counts, window)
        dense = int((counts - packed).sum())
        total: float = POSITION_BYTES * int(counts.sum()) + dense * _dense_bytes(shape)
        total += OFFSET_BYTES * (heads + 1) if dense or not packed.any() else 0
        bits = self.precision.bits(view.layer, heads)
        for width in bits.unique().tolist():
            slots = int(packed[bits == width].sum())
            total += (slots * self._slot_bytes(shape, width) + self._block_bytes(shape)) if slots else 0
        return total

    # --- inside --------------------------------------------------------------------------------------------------

    def _apart(self, window: int) -> int:
        """Slots of every head that stay dense because they are the window's."""
        return window if self.channels.window_dense or self.precision.slots_together > 1 else 0

    def _packed_counts(self, counts: Tensor, window: int) -> Tensor:
        """[H]: the number of every head's first slots that are packed; the others stay dense."""
        together = self.precision.slots_together
        return (counts - self._apart(window)).clamp(min=0) // together * together

    def _block_bytes(self, shape: LayerShape) -> int:
        """Bytes of a block besides its slots."""
        return OFFSET_BYTES * (shape.heads + 1) + shape.heads * self.channels.head_bytes(shape.key_dim)

    def _slot_bytes(self, shape: LayerShape, bits: int) -> float:
        """Bytes of a packed slot of a head of `bits` bits."""
        keys, values = self.channels.widths(shape.key_dim, shape.value_dim, shape.itemsize)
        scales = (0.0, 0.0)
        if bits < 16:
            scales = self.precision.scale_bytes(keys.numbers, values.numbers, shape.itemsize)
        return keys.bytes(bits, shape.itemsize) + values.bytes(bits, shape.itemsize) + sum(scales)

    def _part(
        self, view: LayerView, selection: Selection, bits: int, choice: ChannelChoice, earlier: Earlier | None
    ) -> Part:
        """The selected slots, all at the same number of bits."""
        if bits == 16 and isinstance(self.channels, AllChannels):
            return dense_block(view, selection)
        written = written_before(earlier, selection, bits) if earlier and self.separable else None
        new = written.others(selection) if written else selection
        starts = range(0, len(new.positions), _AT_ONCE)
        pieces = [self._piece(view, new, start, bits, choice) for start in starts]
        if written:
            pieces.append(written.rows())
        order = written.order() if written else None
        keys = join_rows([piece[0] for piece in pieces], view.keys.shape[-1], order)
        values = join_rows([piece[1] for piece in pieces], view.values.shape[-1], order)
        return PackedBlock(
            PackedKeys(view.keys.shape[-1], keys.entries, keys.channels, keys.pruned),
            PackedValues(view.values.shape[-1], values.entries, values.pruned),
            selection.offsets,
            view.keys.dtype,
        )

    def _piece(
        self, view: LayerView, selection: Selection, start: int, bits: int, choice: ChannelChoice
    ) -> tuple[PackedRows, PackedRows]:
        """Keys and values of the selected slots from `start` on, packed."""
        slots = _slots(view, selection, start)
        check_finite(slots.keys, view.layer, "keys")
        check_finite(slots.values, view.layer, "values")
        dtype = view.keys.dtype
        keys = choice.keys(slots).quantized(bits, dtype, self.precision.keys)
        return keys, choice.values(slots).quantized(bits, dtype, self.precision.values)


def _dense_bytes(shape: LayerShape) -> int:
    """Bytes of a slot that stays dense, without its position."""
    return (shape.key_dim + shape.value_dim) * shape.itemsize


def _slots(view: LayerView, selection: Selection, start: int) -> Slots:
    """Keys and values of some selected slots, gathered."""
    heads = view.keys.shape[0]
    positions = selection.positions[start : start + _AT_ONCE].to(view.keys.device)
    head = heads_of_slots(selection.offsets, torch.arange(start, start + len(positions))).to(view.keys.device)
    return Slots(view.keys.detach()[head, positions], view.values.detach()[head, positions], head, heads)


def _first_slots(selection: Selection, counts: Tensor) -> Selection:
    """The first counts[h] selected slots of every head."""
    return _span(selection, selection.offsets[:-1], counts)


def _last_slots(selection: Selection, counts: Tensor) -> Selection:
    """The last counts[h] selected slots of every head."""
    return _span(selection, selection.offsets[1:] - counts, counts)


def _span(selection: Selection, starts: Tensor, counts: Tensor) -> Selection:
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    index = torch.arange(int(offsets[-1])) + (starts - offsets[:-1]).repeat_interleave(counts)
    return Selection(selection.positions[index.to(selection.positions.device)], offsets)
