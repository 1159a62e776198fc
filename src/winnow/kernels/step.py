"""New tokens of every row, as a rule one, copied behind the tail and attended from by one call of the compiled library.

On small models a step is calls and looks at tensors, not arithmetic. So shapes, strides and addresses of buffers are
written down once; between steps a call sets four addresses, and reads of every new tensor what keeps memory safe.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.kernels import native
from winnow.kernels.native import NativePlan, error_of
from winnow.kernels.native_args import BAD_LENGTH, AppendArgs, ColumnsArgs, StepArgs
from winnow.kernels.recording import CallRecording, LibraryCall
from winnow.kernels.segments import Ring, TailSegments
from winnow.kernels.sizes import AskedSizes, LayerSizes


def native_plan(plan: object) -> NativePlan | None:
    """The compiled library's part of a plan; None where other kernels serve."""
    kernels = getattr(plan, "kernels", None)
    return kernels if isinstance(kernels, NativePlan) else None


class TokenKind(NamedTuple):
    """Tensors of a step; the same object for all layers whose tokens are alike, so that it stays in fast memory."""

    keys: torch.Size
    """[R, H, n, D]"""
    values: int
    """Numbers: as it is the module of the keys that sends them, and the query, their shapes differ where these do."""
    query: int
    dtype: torch.dtype
    like: Tensor
    """One of the output's shape [R, n, Hq, Dv] and dtype, for `torch.empty_like`."""


@lru_cache(maxsize=256)
def _kind(sizes: LayerSizes, asked: AskedSizes, query_heads: int, tokens: int, dtype: torch.dtype) -> TokenKind:
    rows, heads, key_dim, value_dim = sizes
    like = native.standing_for(dtype, (rows, tokens, query_heads, asked.output_dim))
    keys, each = torch.Size((rows, heads, tokens, key_dim)), rows * tokens
    return TokenKind(keys, each * heads * value_dim, each * query_heads * asked.query_dim, dtype, like)


class DecodeStep:
    """Appending and attending, as a plan and the tail that it was made for say; R rows, H KV heads.

    Keeps alive all that it points to, and serves as long as the plan does. Not in two threads at once.
    """

    __slots__ = ("_alive", "_args", "_kind", "_reference", "_step")

    @classmethod
    def over(cls, plan: object, tail: TailSegments, ring: Tensor | None, query: Tensor) -> DecodeStep | None:
        """The same, for queries as this one [R, Hq, n, D]; None where the compiled library does not serve.

        ring: [R, Hq, C, D], of which every query takes a column, if there is one: steps are of one token then.
        """
        writable = ring is None or (ring.is_contiguous() and ring.is_cpu and ring.dtype is tail.keys.dtype)
        kernels = native_plan(plan)
        if not writable or kernels is None:
            return None
        tokens = _new_tokens(query.shape[2], tail.keys, tail.values, tail.lengths)
        queries = AppendArgs() if ring is None else _new_tokens(1, ring)
        return cls(kernels, tail, (tokens, queries), query, ring)

    @classmethod
    def around(cls, plan: object, ring: Ring, query: Tensor) -> DecodeStep | None:
        """The same over rings, where a token of a row takes the place of the oldest.

        None where the compiled library does not serve.
        """
        kernels, tail = native_plan(plan), ring.columns
        if kernels is None:
            return None
        return cls(kernels, tail, (_tokens_of_ring(1, ring), AppendArgs()), query, ring)

    def __init__(
        self,
        plan: NativePlan,
        tail: TailSegments,
        appended: tuple[AppendArgs, AppendArgs],
        query: Tensor,
        alive: object,
    ) -> None:
        """appended: the copies of keys and values, and of the query. alive: owners of memory that they write."""
        self._kind = _kind(plan.sizes, plan.asked, query.shape[1], query.shape[2], tail.keys.dtype)
        self._alive = (plan, tail, alive)
        tokens, queries = appended
        self._args = StepArgs(tokens=tokens, queries=queries, decode=plan.arguments(query))
        self._step = native.loaded_library().winnow_step
        self._reference = ctypes.byref(self._args)

    def takes(self, keys: Tensor, values: Tensor) -> bool:
        """True for contiguous keys [R, H, n, D] and values [R, H, n, Dv] on the CPU, of the tail's dtype."""
        shape, numbers, _, dtype, _ = self._kind
        return (
            keys.shape == shape
            and values.numel() == numbers
            and keys.dtype is dtype
            and values.dtype is dtype
            and keys.is_cpu
            and values.is_cpu
            and keys.is_contiguous()
            and values.is_contiguous()
        )

    def asks(self, query: Tensor) -> bool:
        """True for contiguous queries [R, Hq, n, D] on the CPU, of the tail's dtype."""
        _, _, numbers, dtype, _ = self._kind
        return query.numel() == numbers and query.dtype is dtype and query.is_cpu and query.is_contiguous()

    def run(self, query: Tensor, keys: Tensor, values: Tensor, column: int) -> Tensor | None:
        """Attention [R, n, Hq, Dv] over all that rows hold and these, which they hold then; None: there is no room.

        Of the three only what `takes` and `asks` accept. column: of the ring, for the query.
        """
        output = torch.empty_like(self._kind.like)
        args = self._args
        args.query, args.keys, args.values = query.data_ptr(), keys.data_ptr(), values.data_ptr()
        args.output = output.data_ptr()
        status = self.again(column, torch.get_num_threads())
        if not status:
            return output
        if status == BAD_LENGTH:
            return None
        raise error_of(status)

    def note(self, recording: CallRecording, column: Callable[[], int] | None, *tensors: Tensor) -> None:
        """Has a recorder make the call again.

        column: that which the ring has by then; None: there is no ring. tensors: those of the latest call, in whose
        memory others lie later.
        """
        if column is None:
            recording.note_call(LibraryCall("winnow_step", self._args, error_of), self, *tensors)
            return
        threads = recording.threads
        recording.note(lambda: self.again(column(), threads.value), error_of, self, *tensors)

    def again(self, column: int, threads: int) -> int:
        """The status of the call, made once more: it takes the query, keys and values that lie there by now."""
        args = self._args
        args.column, args.threads = column, threads
        status: int = self._step(self._reference)
        return status


def take_into(ring: Ring, keys: Tensor, values: Tensor, count: int) -> None:
    """Has a ring take the first `count` of contiguous tokens [R, H, n, D] and [R, H, n, Dv].

    Raises ValueError, and nothing is written, where a column is beyond the buffers.
    """
    args = _tokens_of_ring(keys.shape[2], ring)
    args.tokens, args.first.source, args.second.source = count, keys.data_ptr(), values.data_ptr()
    status = native.loaded_library().winnow_append(ctypes.byref(args))
    if status:
        raise error_of(status)


def _tokens_of_ring(count: int, ring: Ring) -> AppendArgs:
    columns = ring.columns
    tokens = _new_tokens(count, columns.keys, columns.values, columns.lengths)
    tokens.first.spare, tokens.second.spare = ring.spare_keys.data_ptr(), ring.spare_values.data_ptr()
    tokens.seen, tokens.window = ring.seen.data_ptr(), ring.window
    return tokens


def _new_tokens(count: int, first: Tensor, second: Tensor | None = None, lengths: Tensor | None = None) -> AppendArgs:
    """The copy of `count` contiguous tokens of every row into buffers [R, H, C, D] and [R, H, C, Dv]."""
    rows, heads, capacity, _ = first.shape
    return AppendArgs(
        rows=rows,
        heads=heads,
        tokens=count,
        capacity=capacity,
        first=_columns(first, count),
        second=ColumnsArgs() if second is None else _columns(second, count),
        lengths=None if lengths is None else lengths.data_ptr(),
    )


def _columns(buffer: Tensor, count: int) -> ColumnsArgs:
    _, heads, _, dim = buffer.shape
    size = dim * buffer.element_size()
    head = count * size
    return ColumnsArgs(
        row_stride=heads * head, head_stride=head, token_stride=size, target=buffer.data_ptr(), bytes=size
    )
