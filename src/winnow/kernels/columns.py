"""New tokens' numbers, copied by the compiled library into buffers with room for more.

One call takes the place of views, copies and a sum, each of which costs torch as much as the copy of a whole token.
"""

from __future__ import annotations

import ctypes
from copy import deepcopy
from typing import Any

from torch import Tensor

from winnow.kernels import native
from winnow.kernels.native_args import AppendArgs, ColumnsArgs
from winnow.kernels.recording import refuse_recording


class Columns:
    """One or two buffers of R rows and H heads: [R, H, C, D], and [R, H, C, Dv], contiguous, on the CPU.

    Keeps them alive. To be made anew when a buffer is another one.
    """

    @classmethod
    def over(cls, first: Tensor, second: Tensor | None = None, lengths: Tensor | None = None) -> Columns | None:
        """The same, where the compiled library can write: contiguous memory on the CPU; else None."""
        buffers = [buffer for buffer in (first, second, lengths) if buffer is not None]
        here = all(buffer.device.type == "cpu" and buffer.is_contiguous() for buffer in buffers)
        return cls(first, second, lengths) if here and native.library() is not None else None

    def __init__(self, first: Tensor, second: Tensor | None = None, lengths: Tensor | None = None) -> None:
        """lengths: [R] int64 tokens that rows hold, which grow with every `append`; None: columns are named."""
        rows, heads, capacity, _ = first.shape
        self.first, self.second, self.lengths = first, second, lengths
        self._args = AppendArgs(
            rows=rows,
            heads=heads,
            capacity=capacity,
            first=_into(first),
            second=ColumnsArgs() if second is None else _into(second),
            lengths=None if lengths is None else lengths.data_ptr(),
        )
        self._append = native.loaded_library().winnow_append
        self._reference = ctypes.byref(self._args)
        self._from_first, self._from_second = self._args.first, self._args.second
        self._numbers = self._second_numbers = -1  # of contiguous tensors that were accepted last

    def are(self, first: Tensor, second: Tensor | None = None, lengths: Tensor | None = None) -> bool:
        """True if these are the very buffers."""
        return first is self.first and second is self.second and lengths is self.lengths

    def append(self, first: Tensor, second: Tensor) -> bool:
        """Writes [R, H, Q, D] and [R, H, Q, Dv] behind what rows hold, and counts them.

        False, and nothing is written, where they are not of the buffers' kind or a row has no room.
        """
        if not self._is_usual(first, second) and not self._accept(first, second):
            return False
        refuse_recording("a token without its attention")
        self._from_first.source, self._from_second.source = first.data_ptr(), second.data_ptr()
        return not self._append(self._reference)

    def put(self, column: int, first: Tensor) -> bool:
        """Writes [R, H, Q, D] into the columns from `column` on; False as for `append`."""
        if not self._is_usual(first, None) and not self._accept(first, None):
            return False
        refuse_recording("a query without its attention")
        self._from_first.source, self._args.column = first.data_ptr(), column
        return not self._append(self._reference)

    def __deepcopy__(self, memo: dict[int, Any]) -> Columns:
        # Memory of another one's buffers must not be written.
        return Columns(deepcopy(self.first, memo), deepcopy(self.second, memo), deepcopy(self.lengths, memo))

    def _is_usual(self, first: Tensor, second: Tensor | None) -> bool:
        """True for as many contiguous numbers as were accepted last: what is cheap to see and keeps memory safe."""
        return (
            first.numel() == self._numbers
            and first.is_cpu
            and first.is_contiguous()
            and first.dtype is self.first.dtype
            and (
                second is None
                or (
                    second.numel() == self._second_numbers
                    and second.is_cpu
                    and second.is_contiguous()
                    and second.dtype is first.dtype
                )
            )
        )

    def _accept(self, first: Tensor, second: Tensor | None) -> bool:
        """Sets what depends on shapes and strides, which rarely change between steps; False where they do not fit."""
        tokens = self._args.tokens = first.shape[2]
        self._numbers = self._second_numbers = -1
        for new, buffer, columns in ((first, self.first, self._from_first), (second, self.second, self._from_second)):
            if new is None or buffer is None:
                continue
            rows, heads, _, dim = buffer.shape
            fits = new.shape == (rows, heads, tokens, dim) and new.dtype is buffer.dtype and new.is_cpu
            if not fits or new.stride(3) != 1:
                return False
            size = buffer.element_size()
            columns.row_stride, columns.head_stride, columns.token_stride = (step * size for step in new.stride()[:3])
        if first.is_contiguous() and (second is None or second.is_contiguous()):
            self._numbers = first.numel()
            self._second_numbers = -1 if second is None else second.numel()
        return True


def _into(buffer: Tensor) -> ColumnsArgs:
    return ColumnsArgs(target=buffer.data_ptr(), bytes=buffer.shape[-1] * buffer.element_size())
