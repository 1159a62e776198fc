"""The windows of a sliding layer while single tokens come, which copies nothing but these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winnow.cache.tail import FIRST_CAPACITY, GROWTH
from winnow.cache.writable import writable
from winnow.errors import GraphError
from winnow.kernels.interface import AttentionSpec, DecodePlan, TailSegments
from winnow.kernels.native import NativePlan
from winnow.kernels.recording import this_thread
from winnow.kernels.segments import Ring
from winnow.kernels.step import DecodeStep, take_into


class WindowRing:
    """The last W tokens of R rows: a row's token t lies in column t % W, where its token t + W takes its place.

    Attention does not depend on the order of columns, as keys are rotated by their positions before they come here.
    Buffers [R, H, C, D] and [R, H, C, Dv] grow up to C = W. What the latest token took the place of is spared, so that
    this one can be taken back. Rows may have seen different numbers of tokens.
    """

    keys: Tensor
    """[R, H, C, D]"""
    values: Tensor
    """[R, H, C, Dv]"""
    _spares: tuple[Tensor, Tensor]
    """[R, H, 1, D] and [R, H, 1, Dv]"""
    _plan: DecodePlan | None
    _step: DecodeStep | None

    @classmethod
    def of(cls, keys: Tensor, values: Tensor, window: int, seen: int, room: int = 0) -> WindowRing:
        """keys: [R, H, N, D], values: [R, H, N, Dv], the last N < W of `seen` tokens in their order.

        room: tokens that are about to come.
        """
        capacity = min(window, seen + max(FIRST_CAPACITY, room))
        with writable():
            laid = [_laid(each.detach(), seen, window, capacity) for each in (keys, values)]
        return cls(laid[0], laid[1], window, np.full(len(keys), seen))

    def __init__(self, keys: Tensor, values: Tensor, window: int, seen: NDArray[np.int64]) -> None:
        """keys: [R, H, C, D], values: [R, H, C, Dv], which have tokens in their columns; seen: [R] of all times."""
        self.window = window
        # Read and written as arrays, too, without torch, which a recording would note.
        with writable():
            self._seen_there = torch.from_numpy(seen.astype(np.int64))
            self._lengths = self._seen_there.clamp(max=window)
        self.seen: NDArray[np.int64] = self._seen_there.numpy()
        """[R] tokens that rows saw; `back_to` changes them."""
        self._hold(keys, values)

    @property
    def longest(self) -> int:
        """Tokens of the row that saw most."""
        return int(self.seen.max(initial=0))

    @property
    def is_even(self) -> bool:
        """True if all rows saw as many tokens."""
        return int(self.seen.min(initial=self.longest)) == self.longest

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, spec: AttentionSpec) -> Tensor | None:
        """Takes keys [R, H, 1, D] and values [R, H, 1, Dv] of a token of every row, and attends over their windows.

        query [R, Hq, 1, D] -> output [R, 1, Hq, Dv]. None, and nothing was done, for what the library does not take.
        Raises GraphError where a step is recorded that would need other memory.
        """
        query, keys, values = query.contiguous(), keys.contiguous(), values.contiguous()
        step, recording = self._step_for(query, spec), this_thread.recording
        if step is None or not (step.takes(keys, values) and step.asks(query)):
            return None
        output = step.run(query, keys, values, 0)
        if output is not None and recording is not None:
            step.note(recording, None, query, keys, values, output)
        return output

    def attend_ahead(self, query: Tensor, keys: Tensor, values: Tensor, spec: AttentionSpec) -> Tensor | None:
        """Attends with tokens of every row over their windows, as if each had come by itself, but takes none.

        query [R, Hq, n, D], keys [R, H, n, D] and values [R, H, n, Dv], contiguous -> output [R, n, Hq, Dv]. None for
        what the library does not take.
        """
        if query.dtype != self.keys.dtype or query.shape[-1] != self.keys.shape[-1]:
            return None
        # As an array, without torch, which a recording would note.
        lengths = torch.from_numpy(np.full(len(self.seen), keys.shape[2]))
        new = TailSegments(keys, values, lengths)
        return NativePlan([None] * len(self.seen), new, spec, ring=self._ring()).run(query)

    def take(self, keys: Tensor, values: Tensor, count: int) -> None:
        """Takes the first `count` of tokens, keys [R, H, n, D] and values [R, H, n, Dv], which attended already."""
        if count:
            self.make_room(count)
            take_into(self._ring(), keys, values, count)

    def over(self, query: Tensor, spec: AttentionSpec) -> Tensor:
        """Attention of another layer over the windows of the latest token: [R, Hq, 1, D] -> [R, 1, Hq, Dv]."""
        if self._plan is None or not spec.same_as(self._plan.spec):
            return self._planned(spec).run(query)
        return self._plan.run(query)

    def room(self) -> int:
        """Tokens that can come before buffers move; as many as one likes once these are as large as the window."""
        return self.window if self._capacity == self.window else self._capacity - self.longest

    def ready_step(self) -> DecodeStep | None:
        """The call of the next token, where that needs no other memory than the latest did; else None."""
        return self._step if self.room() > 0 else None

    def make_room(self, tokens: int) -> None:
        """Room for so many more tokens."""
        if self.room() < min(tokens, self.window):
            capacity = min(self.window, self.longest + tokens)
            self._hold(_grown(self.keys, capacity), _grown(self.values, capacity))

    def back_to(self, seen: NDArray[np.int64]) -> None:
        """Forgets the latest token, where it came: rows saw `seen` [R], and what had its place is there again."""
        if bool((self.seen == seen).all()):
            return
        rows = torch.arange(len(seen), device="cpu")
        columns = torch.from_numpy(seen % self.window)
        self.keys[rows, :, columns] = self._spares[0][:, :, 0]
        self.values[rows, :, columns] = self._spares[1][:, :, 0]
        self._lengths.copy_(torch.from_numpy(seen.clip(max=self.window)))
        self.seen[:] = seen

    def in_order(self) -> tuple[Tensor, Tensor]:
        """Copies [R, H, N, D] and [R, H, N, Dv] of the last N < W tokens, which the next one sees; of even rows."""
        return self._last(self.window - 1)

    def all_in_order(self) -> tuple[Tensor, Tensor]:
        """Copies [R, H, N, D] and [R, H, N, Dv] of the last N <= W tokens, which the latest saw; of even rows."""
        return self._last(self.window)

    def selected(self, rows: Tensor) -> WindowRing:
        """A ring of its own of rows in a new order, with repeats or omissions (`rows` int64)."""
        with writable():
            keys, values = (each.index_select(0, rows) for each in (self.keys, self.values))
        return WindowRing(keys, values, self.window, self.seen[rows.numpy()])

    def joined(self, others: Sequence[WindowRing]) -> WindowRing:
        """A ring of its own of these rows, and of those of others behind them."""
        every = [self, *others]
        capacity = max(each._capacity for each in every)
        with writable():
            keys = torch.cat([_grown(each.keys, capacity) for each in every])
            values = torch.cat([_grown(each.values, capacity) for each in every])
        return WindowRing(keys, values, self.window, np.concatenate([each.seen for each in every]))

    def tensors(self) -> list[Tensor]:
        """All that it holds."""
        return [self.keys, self.values, *self._spares, self._lengths, self._seen_there]

    def __deepcopy__(self, memo: dict[int, Any]) -> WindowRing:
        with writable():
            keys, values = self.keys.clone(), self.values.clone()
        return WindowRing(keys, values, self.window, self.seen)

    @property
    def _capacity(self) -> int:
        return self.keys.shape[2]

    def _hold(self, keys: Tensor, values: Tensor) -> None:
        """Buffers from now on."""
        with writable():
            spares = keys.new_empty(_one(keys)), values.new_empty(_one(values))
        # In one step, so that an interrupt finds all of it done or nothing.
        self.__dict__.update(keys=keys, values=values, _spares=spares, _plan=None, _step=None)

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
            self.make_room(max(FIRST_CAPACITY, int(self.longest * (GROWTH - 1))))
        self._plan = self._planned(spec)
        self._step = self._called(query)
        return self._step

    def _called(self, query: Tensor) -> DecodeStep | None:
        return DecodeStep.around(self._plan, self._ring(), query)

    def _last(self, tokens: int) -> tuple[Tensor, Tensor]:
        assert self.is_even
        places = torch.arange(max(0, self.longest - tokens), self.longest, device=self.keys.device) % self.window
        return self.keys.index_select(2, places), self.values.index_select(2, places)

    def _planned(self, spec: AttentionSpec) -> DecodePlan:
        return DecodePlan([None] * len(self.seen), self._columns(), spec)

    def _ring(self) -> Ring:
        return Ring(self._columns(), self._seen_there, *self._spares, self.window)

    def _columns(self) -> TailSegments:
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


def _grown(held: Tensor, capacity: int) -> Tensor:
    """A buffer [R, H, C, D] with more columns behind those there are: none has come to its end yet."""
    if held.shape[2] == capacity:
        return held
    rows, heads, columns, dim = held.shape
    with writable():
        buffer = held.new_empty(rows, heads, capacity, dim)
    buffer[:, :, :columns] = held
    return buffer


def _one(held: Tensor) -> tuple[int, ...]:
    """The shape of a token of every row."""
    return (*held.shape[:2], 1, held.shape[3])
