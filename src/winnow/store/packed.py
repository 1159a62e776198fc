"""Slots with fewer channels, fewer bits, or both: any choice of channels in any precision."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from winnow.errors import MethodError
from winnow.heads import HeadScores
from winnow.kernels.formats import Block, PackedBlock, Part, Parts
from winnow.kernels.formats.entries import Entries
from winnow.kernels.formats.heads import heads_of_slots
from winnow.kernels.formats.packed import Form, PackedKeys, PackedRows, PackedValues
from winnow.kernels.gpu import support as gpu
from winnow.kernels.rotating import centered_rows, rotated_rows, smoothed_rows
from winnow.select import Selection
from winnow.store.base import OFFSET_BYTES, POSITION_BYTES, Cost, Earlier, LayerShape, Store
from winnow.store.channels import AllChannels, ChannelChoice, Channels, Slots, check_finite, packed_part
from winnow.store.dearer import warn_if_dearer
from winnow.store.dense import dense_block
from winnow.store.feedback import QUERIES, Steps, feedback, rounded_with_feedback
from winnow.store.key_statistics import KeyStatistics, key_statistics
from winnow.store.precision import AsIs, Precision
from winnow.store.written import Forms, joined_rows, written_before
from winnow.transfers import sent
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
                "kivi scales every key channel over 32 slots, but under spark each slot has its own channels; combine "
                "spark with bits, or kivi with think."
            )
        if not self._whole and self.precision.rotate not in (False, "auto"):
            raise MethodError(
                "rotate mixes all channels of a key, so none of them can be dropped; leave rotate out, or the part "
                "that drops channels (spark, think)."
            )
        if not self._whole and True in (self.precision.center, self.precision.smooth):
            raise MethodError(
                "center and smooth need keys with all their channels; leave them out, or the part that drops channels "
                "(spark, think)."
            )
        if not self._whole and self.precision.round != "nearest":
            raise MethodError(
                "round=queries needs all channels of a key, whose errors compensate each other; leave it out, or the "
                "part that drops channels (spark, think)."
            )
        if self.channels.per_slot and self.precision.channels_together:
            raise MethodError(
                "bits(group=...) scales neighboring channels together, but under spark each slot has its own channels; "
                "leave group out, or combine it with think."
            )

    def for_model(self, name: str, heads: tuple[int, ...]) -> Store:
        return replace(self, precision=self.precision.for_model(name, heads))

    def with_head_scores(self, scores: HeadScores) -> Store:
        return replace(self, precision=self.precision.with_head_scores(scores))

    def queries_needed(self, length: int) -> int:
        rounding = min(QUERIES, length) if self.precision.round == "queries" else 0
        return max(self.channels.queries_needed(length), rounding)

    def pack(self, view: LayerView, selection: Selection, window: int, earlier: Earlier | None = None) -> Block:
        early = self._early(view, selection)
        counts = self._packed_counts(selection.offsets.diff() - early, window)
        between = _span(selection, selection.offsets[:-1] + early, counts)
        like = packed_part(earlier.block if earlier else None)
        first = _first_slots(selection, early)
        parts: list[Part] = [dense_block(view, first)] if len(first.positions) else []
        forms = self._forms(view.layer, len(counts))
        statistics = KeyStatistics()
        if any(form.keys.centered or form.keys.smoothed for form, _ in forms):
            how = self.precision
            statistics = key_statistics(view, between, like, bool(how.center), bool(how.smooth))
        turns = any(form.keys.rotated for form, _ in forms)
        making = _Making(view, self.channels.choose(view, selection, like), earlier, statistics, turns)
        for form, heads in forms:
            part = _first_slots(between, torch.where(heads, counts, 0))
            if len(part.positions):
                parts.append(self._part(making, part, form))
        warn_if_dearer(self.channels, parts)
        rest = _last_slots(selection, selection.offsets.diff() - early - counts)
        if len(rest.positions) or not parts:
            parts.append(dense_block(view, rest))
        return parts[0] if len(parts) == 1 else Parts(tuple(parts))

    @property
    def separable(self) -> bool:
        return self.precision.slots_together == 1

    @property
    def appendable(self) -> bool:
        return True

    @property
    def reads_written(self) -> bool:
        return self.channels.compares_slots

    @property
    def residual(self) -> int:
        return self.precision.residual

    def cost(self, shape: LayerShape) -> Cost:
        """Exact but where slots keep different numbers of channels, all counted as the dearest, or fill no group.

        Heads that hold fewer slots than stay dense in any case take less.
        """
        forms = self._forms(shape.layer, shape.heads)
        slot = sum(int(heads.sum()) * self._slot_bytes(shape, form) for form, heads in forms) / shape.heads
        # Slots that fill no group stay dense, too, but how many is known only once heads know theirs.
        apart = self._apart(shape.window) + self.precision.dense_first
        apart = apart if shape.length is None else min(apart, shape.length)
        blocks = sum(self._block_bytes(shape, form) for form, _ in forms)
        dense = (self._apart(shape.window) > 0) + (self.precision.dense_first > 0)
        blocks += dense * OFFSET_BYTES * (shape.heads + 1)
        return Cost(blocks + apart * shape.heads * (_dense_bytes(shape) - slot), slot + POSITION_BYTES)

    def bytes(self, view: LayerView, selection: Selection, window: int, earlier: Earlier | None = None) -> float:
        if self.channels.varies:
            return super().bytes(view, selection, window, earlier)
        heads, _, dim = view.keys.shape
        shape = LayerShape(view.layer, heads, dim, view.values.shape[-1], view.keys.element_size(), window)
        counts = selection.offsets.diff()
        early = self._early(view, selection)
        packed = self._packed_counts(counts - early, window)
        last = counts - early - packed
        dense = int((early + last).sum())
        total: float = POSITION_BYTES * int(counts.sum()) + dense * _dense_bytes(shape)
        blocks = int(early.any()) + int(last.any())
        total += OFFSET_BYTES * (heads + 1) * (blocks or int(not packed.any()))
        for form, mine in self._forms(view.layer, heads):
            slots = int(packed[mine].sum())
            total += (slots * self._slot_bytes(shape, form) + self._block_bytes(shape, form)) if slots else 0
        return total

    # --- inside --------------------------------------------------------------------------------------------------

    @property
    def _whole(self) -> bool:
        """True if all channels stay."""
        return isinstance(self.channels, AllChannels)

    def _forms(self, layer: int, heads: int) -> list[tuple[Forms, Tensor]]:
        """The forms that heads of a layer are written in, each beside the heads [H] bool that are."""
        bits = torch.stack([self.precision.bits(layer, heads), self.precision.value_bits(layer, heads)], 1)
        found, which = bits.unique(dim=0, return_inverse=True)
        return [(self._form(keys, values), which == index) for index, (keys, values) in enumerate(found.tolist())]

    def _form(self, keys: int, values: int) -> Forms:
        """The form of heads with so many bits; numbers that stay as they are stay where they are, too."""
        rotate = self.precision.rotate if self._whole else False
        of_keys, of_values = rotate not in (False, "values"), rotate not in (False, "keys")
        center, smooth = (self._whole and bool(each) for each in (self.precision.center, self.precision.smooth))
        if keys == 16:
            of_keys = center = smooth = False
        return Forms(Form(keys, of_keys, center, smooth), Form(values, of_values and values < 16))

    def _early(self, view: LayerView, selection: Selection) -> Tensor:
        """[H] int64: the selected slots of every head that are of the first tokens, and stay dense."""
        columns, offsets = selection.positions, selection.offsets
        if not self.precision.dense_first:
            return torch.zeros(len(offsets) - 1, dtype=torch.int64, device="cpu")
        tokens = columns
        if view.positions is not None:
            tokens = view.positions.to(columns.device)[selection.heads(columns.device), columns]
        before = torch.cat([offsets.new_zeros(1), (tokens < self.precision.dense_first).cpu().cumsum(0)])
        return before[offsets].diff()

    def _apart(self, window: int) -> int:
        """Slots of every head that stay dense because they are the last."""
        own = window if self.channels.window_dense or self.precision.slots_together > 1 else 0
        return max(own, self.residual)

    def _packed_counts(self, counts: Tensor, window: int) -> Tensor:
        """[H]: the number of every head's first slots that are packed; the others stay dense."""
        together = self.precision.slots_together
        return (counts - self._apart(window)).clamp(min=0) // together * together

    def _block_bytes(self, shape: LayerShape, form: Forms) -> int:
        """Bytes of a block besides its slots."""
        statistics = (form.keys.centered + form.keys.smoothed) * shape.key_dim * shape.itemsize
        return OFFSET_BYTES * (shape.heads + 1) + shape.heads * (self.channels.head_bytes(shape.key_dim) + statistics)

    def _slot_bytes(self, shape: LayerShape, form: Forms) -> float:
        """Bytes of a packed slot of a head that is written in a form."""
        widths = self.channels.widths(shape.key_dim, shape.value_dim, shape.itemsize)
        scales = self.precision.scale_bytes(widths[0].numbers, widths[1].numbers, shape.itemsize)
        return sum(
            width.bytes(side.bits, shape.itemsize) + (own if side.bits < 16 else 0)
            for width, side, own in zip(widths, form, scales, strict=True)
        )

    def _part(self, making: _Making, selection: Selection, form: Forms) -> Part:
        """The selected slots, all in one form."""
        view, earlier = making.view, making.earlier
        if form.dense and self._whole:
            return dense_block(view, selection)
        written = written_before(earlier, selection, form, self.precision.slots_together) if earlier else None
        new = written.others(selection) if written else selection
        pieces = self._pieces(making, new, form)
        if written:
            pieces.append(written.rows())
        order = written.order() if written else None
        keys = joined_rows([piece[0] for piece in pieces], view.keys.shape[-1], order)
        values = joined_rows([piece[1] for piece in pieces], view.values.shape[-1], order)
        own = making.of(form).copied()
        return PackedBlock(
            PackedKeys(view.keys.shape[-1], keys.entries, keys.channels, keys.pruned, form.keys.rotated, *own),
            PackedValues(view.values.shape[-1], values.entries, values.pruned, form.values.rotated),
            selection.offsets,
            view.keys.dtype,
        )

    def _pieces(self, making: _Making, selection: Selection, form: Forms) -> list[tuple[PackedRows, PackedRows]]:
        """Keys and values of the selected slots, packed, some slots at a time."""
        slots, view = len(selection.positions), making.view
        feedback = making.feedback if slots and self._has_feedback(form) else None
        if slots and gpu.packs(view.keys, view.values):
            # Imported where it serves: Triton takes a second, and there may be none.
            from winnow.store.gpu import packed_on_a_gpu

            how = self.precision
            return [packed_on_a_gpu(view, selection, making.choice, how, form, making.of(form), feedback)]
        return [self._piece(making, selection, start, form, feedback) for start in range(0, slots, _AT_ONCE)]

    def _piece(
        self, making: _Making, selection: Selection, start: int, form: Forms, feedback: Tensor | None
    ) -> tuple[PackedRows, PackedRows]:
        """Keys and values of the selected slots from `start` on, packed."""
        view = making.view
        slots = _slots(view, selection, start)
        check_finite(slots.keys, view.layer, "keys")
        check_finite(slots.values, view.layer, "values")
        dtype, nothing = view.keys.dtype, KeyStatistics()
        keys, values = making.choice.keys(slots), making.choice.values(slots)
        if form.keys != Form(form.keys.bits):
            keys = _in_coordinates(slots.keys, form.keys, making.of(form), slots.head)
        if form.values.rotated:
            values = _in_coordinates(slots.values, form.values, nothing, slots.head)
        return (
            keys.quantized(form.keys.bits, dtype, partial(self._keys, feedback, slots.head)),
            values.quantized(form.values.bits, dtype, self.precision.values),
        )

    def _has_feedback(self, form: Forms) -> bool:
        """True if channels of keys in a form are not rounded by themselves."""
        return self.precision.round == "queries" and form.keys.bits < 16

    def _keys(self, feedback: Tensor | None, head: Tensor, rows: Tensor, bits: int, dtype: torch.dtype) -> Entries:
        """Integers of rows [n, T] of keys of heads [n]."""
        if feedback is None:
            return self.precision.keys(rows, bits, dtype)
        made = Steps.signed if self.precision.scales == "signed" else Steps.symmetric
        return rounded_with_feedback(
            rows, head, feedback, bits, made(rows, bits, dtype, self.precision.channels_together)
        )


@dataclass(frozen=True)
class _Making:
    """One layer of one sequence that is being packed."""

    view: LayerView
    choice: ChannelChoice
    earlier: Earlier | None
    statistics: KeyStatistics
    rotated: bool
    """True if keys of few bits are rotated."""

    @cached_property
    def feedback(self) -> Tensor:
        """[H, D, D] of keys of any few bits: worked out once, and only where some are to be rounded."""
        return feedback(self.view, self.rotated, self.statistics)

    def of(self, form: Forms) -> KeyStatistics:
        """Statistics of keys that are written in a form."""
        return self.statistics if form.keys.bits < 16 else KeyStatistics()


def _in_coordinates(rows: Tensor, form: Form, statistics: KeyStatistics, head: Tensor) -> PackedRows:
    """Rows [n, D] of heads [n] in fp32, in the coordinates in which they are quantized."""
    means, spreads = statistics
    turned = rows if means is None else centered_rows(rows, means, head)
    turned = turned if spreads is None else smoothed_rows(turned, spreads, head)
    turned = rotated_rows(turned) if form.rotated else turned
    if rows.dtype == torch.float16:
        # Sums of numbers near its end are beyond what a scale can be.
        turned.clamp_(-torch.finfo(rows.dtype).max, torch.finfo(rows.dtype).max)
    return PackedRows(Entries(turned, 16))


def _dense_bytes(shape: LayerShape) -> int:
    """Bytes of a slot that stays dense, without its position."""
    return (shape.key_dim + shape.value_dim) * shape.itemsize


def _slots(view: LayerView, selection: Selection, start: int) -> Slots:
    """Keys and values of some selected slots, gathered."""
    positions = selection.positions[start : start + _AT_ONCE].to(view.keys.device)
    slots = torch.arange(start, start + len(positions), device="cpu")
    head = heads_of_slots(selection.offsets, slots).to(view.keys.device)
    return Slots(view.keys.detach()[head, positions], view.values.detach()[head, positions], head)


def _first_slots(selection: Selection, counts: Tensor) -> Selection:
    """The first counts[h] selected slots of every head."""
    return _span(selection, selection.offsets[:-1], counts)


def _last_slots(selection: Selection, counts: Tensor) -> Selection:
    """The last counts[h] selected slots of every head."""
    return _span(selection, selection.offsets[1:] - counts, counts)


def _span(selection: Selection, starts: Tensor, counts: Tensor) -> Selection:
    """The counts[h] selected slots of every head from starts[h] on."""
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    total, device = int(offsets[-1]), selection.positions.device
    if total in (0, len(selection.positions)):
        return Selection(selection.positions[:total], offsets)
    shift, each = sent(torch.stack([starts - offsets[:-1], counts]), device)
    index = torch.arange(total, device=device) + shift.repeat_interleave(each, output_size=total)
    return Selection(selection.positions[index], offsets)
