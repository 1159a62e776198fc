"""Rows of numbers in a GGUF file, read when they are needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from winnow.models.gguf_blocks import bits_of_levels, is_of_levels, levels_of
from winnow.models.levels import Levels, joined
from winnow.models.parts import parts_of

_PLAIN = {"F32", "F16", "BF16", "F64"}
"""Kinds whose numbers are in no blocks."""


@dataclass(frozen=True)
class FileTensor:
    """Rows of a file that are behind each other, all in blocks of one kind."""

    first: int
    """The number of its first row among those of all tensors of the file."""
    rows: np.ndarray
    """[R, B] bytes, mapped."""
    kind: str
    """As the package gguf names it: "Q4_K"."""
    width: int
    """Numbers of a row."""

    def values(self, rows: np.ndarray) -> Tensor:
        """rows [R, B], bytes of some of them -> [R, I], in float32."""
        if is_of_levels(self.kind):
            return levels_of(torch.from_numpy(rows), self.kind).values()
        import gguf

        values = gguf.dequantize(rows, gguf.GGMLQuantizationType[self.kind])
        return torch.from_numpy(values.reshape(len(rows), self.width))


class FileRows:
    """A parameter that consists of rows of a file, in place of its tensor where transformers loads weights."""

    def __init__(self, tensors: Sequence[FileTensor], rows: np.ndarray, dtype: torch.dtype) -> None:
        """tensors: all of the file, in order; rows [...]: numbers of rows among all of theirs; dtype: to read as.

        Raises ValueError for a row that there is not, and for rows of several widths.
        """
        self._rows = rows.reshape(-1)
        self._starts = np.array([each.first for each in tensors])
        owners = np.unique(self._owners(self._rows))
        self._tensors = tensors
        kinds = {tensors[owner].kind for owner in owners}
        widths = {tensors[owner].width for owner in owners}
        ends = sum(len(each.rows) for each in tensors)
        if len(widths) != 1 or self._rows.min() < 0 or self._rows.max() >= ends:
            raise ValueError("These are no rows of one width.")
        (self.width,) = widths
        self.shape = torch.Size((*rows.shape, self.width))
        self.dtype = dtype
        self.bits = bits_of_levels(*kinds) if len(kinds) == 1 else None
        """Those of the levels that `levels` tells; None where layers keep none, and where rows are of several kinds."""
        self.have_few_bits = not kinds <= _PLAIN

    def __getitem__(self, _: object) -> Tensor:
        """All of it, whatever is asked for: transformers asks once, for everything."""
        made = torch.empty(self.shape, dtype=self.dtype, device="cpu")
        flat = made.view(-1, self.width)
        for part in parts_of(len(flat), self.width):
            for tensor, place, rows in self._read(part):
                flat[place] = tensor.values(rows)
        return made

    def levels(self, part: slice) -> Levels:
        """Those of some of the rows, counted without regard to what they are arranged in, of `bits`."""
        return joined([levels_of(torch.from_numpy(rows), tensor.kind) for tensor, _, rows in self._read(part)])

    def get_dtype(self) -> str:
        """A name that says to transformers that these are numbers with a point."""
        return "F32"

    def _owners(self, rows: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._starts, rows, side="right") - 1

    def _read(self, part: slice) -> Iterator[tuple[FileTensor, slice, np.ndarray]]:
        """Stretches of rows in one tensor each: the tensor, the place among all rows, and bytes [r, B]."""
        rows = self._rows[part]
        owners = self._owners(rows)
        ends = [*np.flatnonzero(np.diff(owners)) + 1, len(rows)]
        for start, end in zip([0, *ends], ends, strict=False):
            tensor = self._tensors[owners[start]]
            within = rows[start:end] - tensor.first
            yield tensor, slice(part.start + start, part.start + end), tensor.rows[within]
