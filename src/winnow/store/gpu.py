"""Packing on a GPU: chosen slots are read where they lie, by a launch for keys and one for values where one is enough.

What is stored is the same to the bit as what `packed.py` makes of gathered slots. Needs Triton.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from winnow.kernels.formats.packed import Form, PackedRows
from winnow.kernels.gpu.feeding import Fed, packed_for_queries
from winnow.kernels.gpu.gathering import Chosen, Coordinates
from winnow.kernels.gpu.packing import packed, ranged
from winnow.kernels.gpu.pruning import split
from winnow.kernels.gpu.requantizing import quantized
from winnow.select import Selection
from winnow.store.channels import ChannelChoice, check_finite
from winnow.store.key_statistics import KeyStatistics
from winnow.store.precision import Precision
from winnow.store.written import Forms
from winnow.view import LayerView


def packed_on_a_gpu(
    view: LayerView,
    selection: Selection,
    choice: ChannelChoice,
    precision: Precision,
    form: Forms,
    statistics: KeyStatistics,
    feedback: Tensor | None,
) -> tuple[PackedRows, PackedRows]:
    """Keys and values of the selected slots of a layer, packed.

    statistics: of keys that are written in the form. feedback: [H, D, D] of `feedback.py`, where keys are rounded so.
    Raises ModelError where a number is not finite.
    """
    device = view.keys.device
    head, token = selection.heads(device), selection.positions.to(device)
    chosen_keys, chosen_values = Chosen(view.keys, head, token), Chosen(view.values, head, token)
    # What is not finite has a scale of NaN; where slots keep channels of their own there may be no scales.
    unfit = torch.zeros(2, device=device)
    with torch.cuda.device_of(view.keys):  # Triton launches on the current one
        own = choice.own_keys(partial(split, chosen_keys, unfit[:1]))
        chosen_keys = chosen_keys._replace(columns=choice.columns)
        coordinates = Coordinates(*statistics, form.keys.rotated)
        if feedback is None:
            keys = _written(own, chosen_keys, coordinates, precision, form.keys, True)
        else:
            fed = Fed(feedback, selection.offsets)
            keys = PackedRows(packed_for_queries(chosen_keys, coordinates, fed, form.keys.bits, *_how(precision)))
        own = choice.own_values(partial(split, chosen_values, unfit[1:]))
        values = _written(own, chosen_values, Coordinates(None, None, form.values.rotated), precision, form.values)
    if choice.columns is not None:
        keys = choice.with_columns(keys.entries)
    check_finite(_telling(keys, unfit[:1]), view.layer, "keys")
    check_finite(_telling(values, unfit[1:]), view.layer, "values")
    return keys, values


def _written(
    own: PackedRows | None, chosen: Chosen, how: Coordinates, precision: Precision, form: Form, of_keys: bool = False
) -> PackedRows:
    """Slots in the bits of a form: those that kept channels of their own, if there are such, else the chosen ones."""
    group, signed = _how(precision)
    if own is not None:
        return quantized(own, form.bits, chosen.rows.shape[-1], signed)
    if precision.slots_together > 1:
        return PackedRows(ranged(chosen, how, form.bits, by_slots=of_keys))
    return PackedRows(packed(chosen, how, form.bits, group, signed))


def _how(precision: Precision) -> tuple[int, bool]:
    """Channels that share a scale, 0 for all; true if scales are signed."""
    return precision.channels_together, precision.scales == "signed"


def _telling(rows: PackedRows, unfit: Tensor) -> Tensor:
    """Numbers that are finite where all of the rows are."""
    if rows.pruned is not None:
        return unfit
    return rows.entries.data if rows.entries.scales is None else rows.entries.scales
