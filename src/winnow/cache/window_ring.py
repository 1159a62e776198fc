"""The window of a sliding layer while single tokens come, which copies nothing but these."""

from __future__ import annotations

from ctypes import c_int32
from functools import partial
from typing import Any

import torch
from torch import Tensor

from winnow.cache.tail import FIRST_CAPACITY, GROWTH
from winnow.cache.writable import writable
from winnow.errors import GraphError
from winnow.kernels import native
from winnow.kernels.interface import AttentionSpec, DecodePlan, TailSegments
from winnow.kernels.native import error_of
from winnow.kernels.recording import this_thread
from winnow.kernels.step import DecodeStep, Spares


class WindowRing:
    """The last W tokens of R rows: token t lies in column t % W, where the token t + W takes its place.

    Attention does not depend on the order of columns, as keys are rotated by their positions before they come here.
    Buffers [R, H, C, D] and [R, H, C, Dv] grow up to C = W. What the latest token took the place of is spared, so that
    this one can be taken back.
    """

    @staticmethod
    def serves(keys: Tensor) -> bool:
        """True for keys of a token that the compiled library takes."""
        return keys.is_cpu and keys.dtype in native.DTYPES and native.library() is not None

    @classmethod
    def of(cls, keys: Tensor, values: Tensor, window: int, seen: int, room: int = 0) -> WindowRing:
        """keys: [R, H, N, D], values: [R, H, N, Dv], the last N < W of `seen` tokens in their order.

        room: tokens that are about to come.
        """
        capacity = min(window, seen + max(FIRST_CAPACITY, room))
        with writable():
            laid = [_laid(each.detach(), seen, window, capacity) for each in (keys, values)]
        return cls(laid[0], laid[1], window, seen)

    def __init__(self, keys: Tensor, values: Tensor, window: int, seen: int) -> None:
        """keys: [R, H, C, D], values: [R, H, C, Dv], which have tokens in their columns."""
        self.window = window
        self.seen = seen
        self.keys, self.values = keys, values
        with writable():
            nowhere = torch.full((1,), -1, dtype=torch.int64, device="cpu")
            self._spares = Spares(keys.new_empty(_one(keys)), values.new_empty(_one(values)), nowhere)
            self._lengths = torch.full((keys.shape[0],), min(seen, window), dtype=torch.int64, device="cpu")
        # Written without torch, which a recording would note.
        self._lengths_here = self._lengths.numpy()
        self._plan: DecodePlan | None = None
        self._step: DecodeStep | None = None

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, spec: AttentionSpec) -> Tensor | None:
        """Takes keys [R, H, 1, D] and values [R, H, 1, Dv] of a token, and attends over its window.

        query [R, Hq, 1, D] -> output [R, 1, Hq, Dv]. None, and nothing was done, for what the library does not take.
        Raises GraphError where a step is recorded that would need other memory.
        """
        query, keys, values = query.contiguous(), keys.contiguous(), values.contiguous()
        step, recording = self._step_for(query, spec), this_thread.recording
        if step is None or not (step.takes(keys, values) and step.asks(query)):
            return None
        self._count()
        output = step.run(query, keys, values, self._column)
        if output is None:
            return None
        self.seen += 1
        if recording is not None:
            again = partial(self._again, step, recording.threads)
            recording.note(again, error_of, self, step, query, keys, values, output)
        return output

    def over(self, query: Tensor, spec: AttentionSpec) -> Tensor:
        """Attention of another layer over the window of the latest token: [R, Hq, 1, D] -> [R, 1, Hq, Dv]."""
        if self._plan is None or not spec.same_as(self._plan.spec):
            return self._planned(spec).run(query)
        return self._plan.run(query)

    def room(self) -> int:
        """Tokens that can come before buffers move; as many as one likes once these are as large as the window."""
        return self.window if self._capacity == self.window else self._capacity - self.seen

    def ready_step(self) -> DecodeStep | None:
        """The call of the next token, where that needs no other memory than the latest did; else None."""
        return self._step if self.room() > 0 else None

    def make_room(self, tokens: int) -> None:
        """Room for so many more tokens."""
        if self.room() < min(tokens, self.window):
            capacity = min(self.window, self.seen + tokens)
            with writable():
                self.keys, self.values = (_grown(each, self.seen, capacity) for each in (self.keys, self.values))
            self._plan = self._step = None

    def back_to(self, seen: int) -> None:
        """Forgets the latest token, where it came: `seen` tokens are there, the one that had its place included."""
        column, spares = seen % self.window, self._spares
        if int(spares.column) == column:
            self.keys[:, :, column], self.values[:, :, column] = spares.keys[:, :, 0], spares.values[:, :, 0]
            spares.column.fill_(-1)
        self.seen = seen

    def in_order(self) -> tuple[Tensor, Tensor]:
        """Copies [R, H, N, D] and [R, H, N, Dv] of what the next token will see: the last N < W tokens."""
        return self._last(self.window - 1)

    def all_in_order(self) -> tuple[Tensor, Tensor]:
        """Copies [R, H, N, D] and [R, H, N, Dv] of what the latest token saw: the last N <= W tokens, it included."""
        return self._last(self.window)

    def selected(self, rows: Tensor) -> WindowRing:
        """A ring of its own of rows in a new order, with repeats or omissions (`rows` int64)."""
        with writable():
            keys, values = (each.index_select(0, rows) for each in (self.keys, self.values))
        return WindowRing(keys, values, self.window, self.seen)

    def tensors(self) -> list[Tensor]:
        """All that it holds."""
        return [self.keys, self.values, *self._spares, self._lengths]

    def __deepcopy__(self, memo: dict[int, Any]) -> WindowRing:
        with writable():
            keys, values = self.keys.clone(), self.values.clone()
        return WindowRing(keys, values, self.window, self.seen)

    @property
    def _capacity(self) -> int:
        return self.keys.shape[2]

    @property
    def _column(self) -> int:
        """The next token's."""
        return self.seen % self.window

    def _count(self) -> None:
        """Lengths with the next token, which stay once the window is full."""
        if self.seen <= self.window:
            self._lengths_here.fill(min(self.seen + 1, self.window))

    def _again(self, step: DecodeStep, threads: c_int32) -> int:
        """The status of a call, made once more for the next token."""
        self._count()
        status = step.again(self._column, threads.value)
        if not status:
            self.seen += 1
        return status

    def _step_for(self, query: Tensor, spec: AttentionSpec) -> DecodeStep | None:
        """The call for tokens that attend so, made anew where buffers moved or attention is another."""
        ready = self.ready_step()
        fits = ready is not None and self._plan is not None and spec.same_as(self._plan.spec)
        if this_thread.recording is not None:
            if not fits:
                raise GraphError("attention over a sliding layer of this model differed from the step before.")
            return self._called(query)  # of its own, as other tokens give the other one memory of theirs
        if fits:
            return ready
        if query.dtype != self.keys.dtype or query.shape[-1] != self.keys.shape[-1]:
            return None
        if self.room() < 1:
            self.make_room(max(FIRST_CAPACITY, int(self.seen * (GROWTH - 1))))
        self._plan = self._planned(spec)
        self._step = self._called(query)
        return self._step

    def _called(self, query: Tensor) -> DecodeStep | None:
        return DecodeStep.around(self._plan, self._segments(), self._spares, query)

    def _last(self, tokens: int) -> tuple[Tensor, Tensor]:
        places = torch.arange(max(0, self.seen - tokens), self.seen, device=self.keys.device) % self.window
        return self.keys.index_select(2, places), self.values.index_select(2, places)

    def _planned(self, spec: AttentionSpec) -> DecodePlan:
        return DecodePlan([None] * len(self._lengths), self._segments(), spec)

    def _segments(self) -> TailSegments:
        return TailSegments(self.keys, self.values, self._lengths)


def _laid(held: Tensor, seen: int, window: int, capacity: int) -> Tensor:
    """A buffer [R, H, C, D] with the last tokens of `seen`, [R, H, N, D], in their columns."""
    rows, heads, tokens, dim = held.shape
    buffer = held.new_empty(rows, heads, capacity, dim)
    first = (seen - tokens) % window
    before_end = min(tokens, window - first)
    buffer[:, :, first : first + before_end] = held[:, :, :before_end]
    buffer[:, :, : tokens - before_end] = held[:, :, before_end:]
    return buffer


def _grown(held: Tensor, tokens: int, capacity: int) -> Tensor:
    """A buffer with more columns, of which so many are filled: it has not come to its end yet."""
    rows, heads, _, dim = held.shape
    buffer = held.new_empty(rows, heads, capacity, dim)
    buffer[:, :, :tokens] = held[:, :, :tokens]
    return buffer


def _one(held: Tensor) -> tuple[int, ...]:
    """The shape of a token of every row."""
    return (*held.shape[:2], 1, held.shape[3])
