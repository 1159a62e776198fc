"""Matrices by which heads make their keys and values of the latents that they share."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from winnow.kernels.sizes import LayerSizes


class HeadMatrices(NamedTuple):
    """Matrices of all heads, which make of a latent c the plain channels of keys, W_k,h·c, and values, W_v,h·c."""

    weight: Tensor
    """[Hq, plain + outputs, C]: the rows of W_k,h above those of W_v,h; int8 where there are scales."""
    plain: int
    """Channels of keys."""
    scales: Tensor | None = None
    """[Hq, plain + outputs], of rows in int8."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of latents that they are made for."""
        return self.weight.dtype if self.scales is None else self.scales.dtype

    @property
    def outputs(self) -> int:
        """Channels of a value."""
        return self.weight.shape[1] - self.plain

    @property
    def keys(self) -> Tensor:
        """[Hq, plain, C]"""
        return self._rows(slice(self.plain))

    @property
    def values(self) -> Tensor:
        """[Hq, outputs, C]"""
        return self._rows(slice(self.plain, None))

    def are_read_with(self, latents: Tensor) -> bool:
        """True if compiled kernels can read them beside latents."""
        if self.scales is not None and self.weight.dtype != torch.int8:
            return False
        held = [each for each in (self.weight, self.scales) if each is not None]
        return self.dtype == latents.dtype and all(each.is_cpu and each.is_contiguous() for each in held)

    def check(self, sizes: LayerSizes, latents: Tensor) -> None:
        """Raises ValueError unless compiled kernels can read them beside latents of a layer."""
        shape = self.weight.shape
        fits = sizes.heads == 1 and shape[2] == sizes.key_dim and 0 < self.plain < shape[1]
        if not fits or (self.scales is not None and self.scales.shape != shape[:2]):
            raise ValueError(f"matrices {list(shape)} do not fit latents of {sizes.key_dim} channels, or their scales")
        if not self.are_read_with(latents):
            raise ValueError(f"matrices are for {self.dtype}, not for latents in {latents.dtype}, or lie in pieces")

    def _rows(self, part: slice) -> Tensor:
        rows = self.weight[:, part]
        return rows if self.scales is None else rows.to(self.dtype) * self.scales[:, part, None]
