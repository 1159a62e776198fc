"""Rounding of keys whose errors make up for each other where queries look: the definition, in float64."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from support.packed_oracle import sylvester
from support.packed_slots import WINDOW, slots_of
from support.quantizers import assert_close, rounded, signed_scale
from winnow.kernels import PackedBlock, parts_of
from winnow.kernels.formats import Block
from winnow.select import Selection
from winnow.store import Packed
from winnow.view import LayerView

SUMS = 1e-6
"""Relative error of numbers that were turned in fp32, whatever the order of the sums."""


def seen_by(view: LayerView, head: int, basis: np.ndarray) -> np.ndarray:
    """H [D, D]: mean of q qᵀ over the queries of a head, in a basis, with 1 % of the mean square in every channel."""
    heads, _, dim = view.keys.shape
    queries = view.queries[:, -256:].double().reshape(heads, -1, dim)[head].numpy() @ basis
    if not queries.any():
        return np.eye(dim)
    found = queries.T @ queries / len(queries)
    return found + np.eye(dim) * 0.01 * np.trace(found) / dim


class Written(NamedTuple):
    """The way in which rows become integers."""

    bits: int
    dtype: torch.dtype
    wide: int
    """Channels that share a scale."""
    signed: bool

    @property
    def least(self) -> int:
        return -(2 ** (self.bits - 1)) + (not self.signed)

    def scales(self, numbers: np.ndarray, found: np.ndarray) -> list[float]:
        """One for every group."""
        groups = [slice(first, first + self.wide) for first in range(0, len(numbers), self.wide)]
        return [self._scale(numbers[each], found[each]) for each in groups]

    def _scale(self, numbers: np.ndarray, found: np.ndarray) -> float:
        """Rounded to the dtype; half-way between two of its numbers, the one that was taken."""
        possible = {self._rounded(numbers * (1 + off)) for off in (-SUMS, 0.0, SUMS)}
        return min(possible, key=lambda scale: np.abs(found - scale * np.round(found / scale)).max() if scale else 0.0)

    def _rounded(self, numbers: np.ndarray) -> float:
        if self.signed:
            return signed_scale(numbers, self.bits, self.dtype)
        return rounded(np.abs(numbers).max() / -self.least, self.dtype)


def assert_fed(numbers: np.ndarray, found: np.ndarray, seen: np.ndarray, how: Written) -> None:
    """Every channel is rounded where, its errors so far given, the errors e to come would make eᵀ H e smallest."""
    dim, least, most = len(numbers), how.least, 2 ** (how.bits - 1) - 1
    scales = how.scales(numbers, found)
    for channel in range(dim):
        scale = scales[channel // how.wide]
        if scale == 0:
            assert_close(found[channel], 0.0, 1e-6)
            continue
        errors = found[:channel] - numbers[:channel]
        best = -np.linalg.solve(seen[channel:, channel:], seen[channel:, :channel] @ errors)[0] if channel else 0.0
        wanted, integer = (numbers[channel] + best) / scale, found[channel] / scale
        assert_close(integer, np.round(integer), 1e-2)
        assert least - 1e-2 <= integer <= most + 1e-2
        assert abs(integer - np.clip(wanted, least, most)) <= 0.5 + 1e-2


def assert_rounded_for_queries(block: Block, store: Packed, view: LayerView, selection: Selection) -> None:
    """Every slot of every part that a store packed is what the definition says."""
    assert sum(block.bytes().values()) + 4 * len(selection.positions) == store.bytes(view, selection, WINDOW)
    packed = [part for part in parts_of(block) if isinstance(part, PackedBlock)]
    keys = packed[0].keys  # constants of heads are the same in all parts
    turn = sylvester(keys.dim) if keys.rotated else np.eye(keys.dim)
    ones, zeros = np.ones((len(view.keys), keys.dim)), np.zeros((len(view.keys), keys.dim))
    means = zeros if keys.means is None else keys.means.double().numpy()
    spreads = ones if keys.spreads is None else keys.spreads.double().numpy()
    writing = {head: part.keys.entries for part in packed for head in range(len(means)) if part.offsets.diff()[head]}
    for slot in slots_of(block, view, selection, WINDOW):
        head, own = slot.head, writing[slot.head]
        numbers, found = (turn @ ((each - means[head]) / spreads[head]) for each in (slot.key, slot.found_key))
        seen = seen_by(view, head, np.diag(spreads[head]) @ turn.T)
        signed = store.precision.scales == "signed"
        assert_fed(numbers, found, seen, Written(own.bits, view.keys.dtype, own.group or keys.dim, signed))
