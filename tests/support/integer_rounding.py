"""Roundings to int16 by kernels that multiply packed latents as integers, and what they may change."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from support.packed_oracle import sylvester
from winnow.kernels import Block, DenseBlock, PackedBlock, native
from winnow.kernels.formats.packed import PackedKeys, PackedValues

HALF_UNIT = 0.5 / (127 * 256 + 127)
"""Largest error of a number in int16, relative to the largest of those that share a unit."""
DEVIATIONS = 6
"""Times the root of the sum of squares that errors, independent of each other, add up to at most."""


def multiplies_integers(dtype: torch.dtype) -> bool:
    """True where the native kernels in use do in models of `dtype`: with AVX-512 VNNI."""
    return dtype is not torch.float32 and native.isa() not in ("portable", "avx2", "avx512")


def added_up(errors: Tensor, factors: Tensor) -> Tensor:
    """[Q, N]: sizes of the sums of errors [Q, C] of single numbers, times factors [N, C]."""
    together = torch.sqrt(errors**2 @ factors.T**2)
    return torch.minimum(errors @ factors.abs().T, DEVIATIONS * together)


class Coordinates(NamedTuple):
    """Changes of rows [n, D] before they became integers."""

    means: Tensor | None
    spreads: Tensor | None
    rotation: Tensor | None
    """[D, D], orthonormal and symmetric."""

    @staticmethod
    def of(rows: PackedKeys | PackedValues) -> Coordinates:
        of_head = [getattr(rows, name, None) for name in ("means", "spreads")]
        rotation = torch.from_numpy(sylvester(rows.dim)) if rows.rotated else None
        return Coordinates(*(None if each is None else each[0].double() for each in of_head), rotation)

    def rows(self, rows: Tensor) -> Tensor:
        """The rows as they were written, times their scales."""
        rows = rows if self.means is None else rows - self.means
        rows = rows if self.spreads is None else rows / self.spreads
        return rows if self.rotation is None else rows @ self.rotation

    def factors(self, factors: Tensor) -> Tensor:
        """Factors that meet written rows as factors [m, D] meet rows, but for means."""
        factors = factors if self.spreads is None else factors * self.spreads
        return factors if self.rotation is None else factors @ self.rotation


class Integers(NamedTuple):
    """Tokens of a part whose latents, and rotated keys if they are integers, queries and weights meet in int16."""

    latents: Tensor
    """[n, C] as written, times their scales."""
    scales: Tensor
    """[n, C / group], sizes."""
    group: int
    """Channels of a latent that share a scale."""
    coordinates: Coordinates
    rotated: Tensor | None
    """[n, Dr] as written, times their scales."""
    of_rotated: Coordinates

    @staticmethod
    def of(part: Block, latents: Tensor, rotated: Tensor) -> Integers | None:
        """Those of a part that stands for latents [n, C] and rotated keys [n, Dr]; None where it is of none."""
        if isinstance(part, DenseBlock) or not len(latents):
            return None
        assert isinstance(part, PackedBlock)
        keys, values = part.keys.entries, part.values.entries
        if keys.bits == 16 or keys.zeros is not None or values.zeros is not None:
            return None
        assert keys.scales is not None
        scales = keys.scales.double().abs().view(len(latents), -1)
        coordinates, of_rotated = Coordinates.of(part.keys), Coordinates.of(part.values)
        written = None if values.bits == 16 else of_rotated.rows(rotated)
        group = keys.group or part.keys.dim
        return Integers(coordinates.rows(latents), scales, group, coordinates, written, of_rotated)

    def off_in_logits(self, asked: Tensor, rotated: Tensor) -> Tensor:
        """[Q, n]: how far products with queries [Q, C] of latents and [Q, Dr] of rotated keys may be off."""
        off = _rounded_products(self.coordinates.factors(asked), self.latents)
        if self.rotated is not None:
            off = off + _rounded_products(self.of_rotated.factors(rotated), self.rotated)
        return off

    def off_in_sums(self, weights: Tensor, of_values: Tensor) -> Tensor:
        """[Q, outputs]: how far sums under weights [Q, n] may be off, times the rows of a matrix [outputs, C]."""
        factors = self.coordinates.factors(of_values)
        off = []
        for i, scales in enumerate(self.scales.T):
            channels = slice(i * self.group, (i + 1) * self.group)
            products = self.latents[:, channels] @ factors[:, channels].T
            # Weights become integers after they were multiplied by scales: what is off by a unit is off by a level.
            levels = torch.where(scales[:, None] > 0, products / scales[:, None], 0)
            largest = (weights * scales).amax(1, keepdim=True)
            off.append(added_up((HALF_UNIT * largest).expand(-1, len(scales)), levels.T))
        return torch.stack(off).sum(0)


def _rounded_products(queries: Tensor, rows: Tensor) -> Tensor:
    """[Q, n]: how far products of queries [Q, D], rounded to int16, with rows [n, D] may be off."""
    largest = queries.abs().amax(1, keepdim=True)
    return added_up((HALF_UNIT * largest).expand_as(queries), rows)
