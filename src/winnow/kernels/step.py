"""One new token of every row, copied behind the tail and attended from by a single call of the compiled library.

On small models a step is calls and looks at tensors, not arithmetic. So shapes, strides and addresses of buffers are
written down once; between steps a call sets four addresses, and reads of every new tensor what keeps memory safe.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from winnow.kernels import native
from winnow.kernels.interface import DecodePlan
from winnow.kernels.native import NativePlan, error_of
from winnow.kernels.native_args import BAD_LENGTH, AppendArgs, ColumnsArgs, StepArgs
from winnow.kernels.segments import TailSegments


class DecodeStep:
    """Appending and attending, as a plan and the tail that it was made for say; R rows, H KV heads.

    Keeps alive all that it points to, and serves as long as the plan does. Not in two threads at once.
    """

    @classmethod
    def over(cls, plan: object, tail: TailSegments, ring: Tensor | None, query: Tensor) -> DecodeStep | None:
        """The same, for queries as this one [R, Hq, 1, D]; None where the compiled library does not serve.

        ring: [R, Hq, C, D], of which every query takes a column, if there is one.
        """
        kernels = plan.kernels if isinstance(plan, DecodePlan) else None
        if not isinstance(kernels, NativePlan):
            return None
        writable = ring is None or (ring.is_contiguous() and ring.is_cpu and ring.dtype is tail.keys.dtype)
        return cls(kernels, tail, ring, query) if writable else None

    def __init__(self, plan: NativePlan, tail: TailSegments, ring: Tensor | None, query: Tensor) -> None:
        rows, heads, key_dim, value_dim = plan.sizes
        self._keys_shape = torch.Size((rows, heads, 1, key_dim))
        self._values_shape = torch.Size((rows, heads, 1, value_dim))
        self._query_shape = torch.Size((rows, query.shape[1], 1, key_dim))
        self._dtype = tail.keys.dtype
        self._like = native.standing_for(self._dtype, (rows, 1, query.shape[1], value_dim))
        self._alive = (plan, tail, ring)
        self._args = StepArgs(
            tokens=_one_token(tail.keys, tail.values, tail.lengths),
            queries=AppendArgs() if ring is None else _one_token(ring),
            decode=plan.arguments(query),
        )
        self._step = native.loaded_library().winnow_step
        self._reference = ctypes.byref(self._args)

    def takes(self, keys: Tensor, values: Tensor) -> bool:
        """True for contiguous keys [R, H, 1, D] and values [R, H, 1, Dv] on the CPU, of the tail's dtype."""
        dtype = self._dtype
        return (
            keys.shape == self._keys_shape
            and values.shape == self._values_shape
            and keys.dtype is dtype
            and values.dtype is dtype
            and keys.is_cpu
            and values.is_cpu
            and keys.is_contiguous()
            and values.is_contiguous()
        )

    def asks(self, query: Tensor) -> bool:
        """True for a contiguous query [R, Hq, 1, D] on the CPU, of the tail's dtype."""
        return (
            query.shape == self._query_shape and query.dtype is self._dtype and query.is_cpu and query.is_contiguous()
        )

    def run(self, query: Tensor, keys: Tensor, values: Tensor, column: int) -> Tensor | None:
        """Attention [R, 1, Hq, Dv] over all that rows hold and these, which they hold then; None: there is no room.

        Of the three only what `takes` and `asks` accept. column: of the ring, for the query.
        """
        output = torch.empty_like(self._like)
        args = self._args
        args.query, args.keys, args.values = query.data_ptr(), keys.data_ptr(), values.data_ptr()
        args.output, args.column, args.threads = output.data_ptr(), column, torch.get_num_threads()
        status = self._step(self._reference)
        if not status:
            return output
        if status == BAD_LENGTH:
            return None
        raise error_of(status)


def _one_token(first: Tensor, second: Tensor | None = None, lengths: Tensor | None = None) -> AppendArgs:
    """The copy of one contiguous token of every row into buffers [R, H, C, D] and [R, H, C, Dv]."""
    rows, heads, capacity, _ = first.shape
    return AppendArgs(
        rows=rows,
        heads=heads,
        tokens=1,
        capacity=capacity,
        first=_columns(first),
        second=ColumnsArgs() if second is None else _columns(second),
        lengths=None if lengths is None else lengths.data_ptr(),
    )


def _columns(buffer: Tensor) -> ColumnsArgs:
    _, heads, _, dim = buffer.shape
    size = dim * buffer.element_size()
    return ColumnsArgs(
        row_stride=heads * size, head_stride=size, token_stride=size, target=buffer.data_ptr(), bytes=size
    )
