"""The dense, private part of a layer: tokens that are not compressed (yet)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from winnow.cache.padding import on_host, places_of
from winnow.cache.writable import writable
from winnow.errors import CacheError
from winnow.kernels.columns import Columns
from winnow.kernels.gpu import support
from winnow.kernels.segments import TailSegments
from winnow.transfers import send_into, sent

FIRST_CAPACITY = 64
GROWTH = 1.5
ROOMY = 2
"""Buffers that many times larger than needed are given back."""


class Tail:
    """Keys and values of the last tokens of R rows, with room to grow: [R, H, C, D] and [R, H, C, Dv].

    Every KV head of a row holds the same number of tokens; rows may differ where a chunk was padded.
    Growth is amortized: a token costs its own copy, not a copy of everything before it. A tail that is folded every so
    many tokens (`limit`) grows to that size and is used again and again.
    """

    def __init__(self, keys: Tensor, values: Tensor, capacity: int = FIRST_CAPACITY, limit: int | None = None) -> None:
        """An empty tail for rows, heads, dims, dtype and device of `keys` [R, H, *, D], `values` [R, H, *, Dv].

        `limit`: how many tokens a row will hold at most, but for chunks of several.
        """
        rows, heads, _, dim = keys.shape
        capacity = capacity if limit is None else min(capacity, limit)
        with writable():
            self.keys = keys.new_empty(rows, heads, capacity, dim)
            self.values = values.new_empty(rows, heads, capacity, values.shape[-1])
            self.lengths = torch.zeros(rows, dtype=torch.int64, device="cpu")
            on_cpu = keys.device.type == "cpu"
            self.lengths_there = self.lengths if on_cpu else torch.zeros(rows, dtype=torch.int64, device=keys.device)
        self.longest = 0
        self.ragged = False
        self.limit = limit
        self._columns: Columns | None = None

    def append(self, keys: Tensor, values: Tensor) -> bool:
        """Adds [R, H, Q, D] and [R, H, Q, Dv] to every row. True if the buffers moved."""
        new, columns = keys.shape[2], self._columns
        if columns is not None and columns.are(self.keys, self.values, self.lengths) and columns.append(keys, values):
            self.longest += new
            return False
        moved = self._reserve(self.longest + new)
        if self.ragged:
            # All rows at once, each behind its own end. Not by scatter_: on a CPU, in 16 bits, its time grows with the
            # buffers.
            device = self.keys.device
            rows = torch.arange(len(self.lengths), device=device)[:, None]
            places = self.lengths_there[:, None] + torch.arange(new, device=device)
            for held, given in ((self.keys, keys), (self.values, values)):
                held[rows, :, places] = given.detach().transpose(1, 2).to(held.dtype)
        else:
            span = slice(self.longest, self.longest + new)
            self.keys[:, :, span].copy_(keys.detach())
            self.values[:, :, span].copy_(values.detach())
        self.lengths += new
        if self.lengths_there is not self.lengths:
            self.lengths_there += new
        self.longest += new
        self._columns = Columns.over(self.keys, self.values, self.lengths)
        return moved

    def write_at(self, places: Tensor, keys: Tensor, values: Tensor) -> None:
        """Writes a token of every row, [R, H, 1, D] and [R, H, 1, Dv], at places [R] int64 on the device.

        The host has no part in it, and must know that there is room; `count` tells it of the token afterwards.
        """
        if self._kept_by_kernel(keys, values):
            from winnow.kernels.gpu.keeping import keep

            keep(places, keys.detach(), values.detach(), self.keys, self.values)
            return
        for held, given in ((self.keys, keys), (self.values, values)):
            held.scatter_(2, places[:, None, None, None].expand(given.shape), given.detach().to(held.dtype))

    def _kept_by_kernel(self, keys: Tensor, values: Tensor) -> bool:
        """True for a token that Triton writes in one launch."""
        there = support.supports(self.segments()) and keys.dtype == self.keys.dtype == values.dtype
        return there and all(each.stride(-1) == 1 for each in (keys, values))

    def count(self, tokens: int = 1) -> None:
        """Counts tokens of every row that were written, and counted, on the device."""
        if self.lengths_there is not self.lengths:
            self.lengths += tokens
        self.longest += tokens

    def room(self) -> int:
        """Tokens that every row can take before buffers move."""
        return min(self.keys.shape[2], self.values.shape[2]) - self.longest

    def make_room(self, tokens: int) -> bool:
        """Room for so many more tokens of every row, up to the limit, but for one at least. True if buffers moved."""
        most = tokens if self.limit is None else min(tokens, self.limit - self.longest)
        return self._reserve(self.longest + max(1, most))

    def append_valid(self, keys: Tensor, values: Tensor, valid: Tensor) -> bool:
        """Adds the tokens of every row that `valid` [R, Q] marks; padding is never stored."""
        valid = on_host(valid)
        counts = valid.sum(dim=1)
        moved = self._reserve(self.longest + int(counts.max()))
        for row, length in enumerate(self.lengths.tolist()):
            new = places_of(valid[row], keys.device)
            self._write(row, length, keys[row, :, new], values[row, :, new])
        self.lengths += counts
        self._refresh()
        return moved

    def followed_by(self, keys: Tensor, values: Tensor, valid: Tensor | None) -> Tail:
        """These tokens and new ones behind them, as of `append` or `append_valid`, in buffers of their own."""
        room = self.longest + keys.shape[2]
        twin = self._over(self._grown(self.keys, room), self._grown(self.values, room), self.lengths.clone())
        if valid is None:
            twin.append(keys, values)
        else:
            twin.append_valid(keys, values, valid)
        return twin

    def row(self, row: int) -> tuple[Tensor, Tensor]:
        """Views [H, T, D] and [H, T, Dv] of the tokens that a row holds."""
        length = int(self.lengths[row])
        return self.keys[row, :, :length], self.values[row, :, :length]

    def one(self, row: int) -> Tail:
        """A tail of one row over the same memory."""
        one = slice(row, row + 1)
        return self._over(self.keys[one], self.values[one], self.lengths[one])

    def segments(self) -> TailSegments:
        """The tail as kernels read it."""
        return TailSegments(self.keys, self.values, self.lengths, self.lengths_there)

    def filled(self) -> tuple[Tensor, Tensor]:
        """Views [R, H, T, D] and [R, H, T, Dv]; only where all rows hold the same number of tokens."""
        return self.keys[:, :, : self.longest], self.values[:, :, : self.longest]

    def crop(self, tokens: Tensor | int) -> None:
        """Forgets the last `tokens` tokens of every row, or of each [R]. Raises CacheError where one holds fewer."""
        self.check_crop(tokens)
        self.lengths -= tokens
        if isinstance(tokens, Tensor):
            self._refresh()
            return
        # Of every row as many: nothing is to be looked for.
        if self.lengths_there is not self.lengths:
            self.lengths_there -= tokens
        self.longest -= tokens

    def check_crop(self, tokens: Tensor | int) -> None:
        """Raises CacheError where a row holds fewer than `tokens` tokens, of all rows or of each [R]."""
        missing = tokens - self.lengths
        if int(missing.max()) > 0:
            row = int(missing.argmax())
            held = int(self.lengths[row])
            raise CacheError(
                f"cannot crop {held + int(missing[row])} tokens: only the last {held} can be removed, because those "
                "before them are compressed (the prompt, and what was folded since). Start again from the prompt, or "
                "fork the cache (copy.deepcopy) before you generate."
            )

    def emptied(self, rows: Sequence[int], room: int) -> Tail:
        """The same buffers without the tokens of some rows, which are folded; `room`: how many tokens come next.

        Buffers that a chunk made much larger than they will be needed are given back once they hold nothing.
        """
        with writable():
            twin = self._over(self.keys, self.values, self.lengths.clone())
        twin.lengths[list(rows)] = 0
        twin._refresh()
        needed = (self.limit or 0) + room - 1
        if not twin.longest and twin.keys.shape[2] > ROOMY * needed:
            twin.keys, twin.values = twin._grown(self.keys, needed), twin._grown(self.values, needed)
        return twin

    def mark(self) -> Tensor | int:
        """The lengths [R], for `restore`; one number where rows do not differ."""
        return self.lengths.clone() if self.ragged else self.longest

    def restore(self, mark: Tensor | int) -> None:
        """Forgets what was appended since a mark."""
        self.lengths[:] = mark
        self._refresh()

    def select(self, rows: Tensor) -> None:
        """Rows in a new order, with repeats or omissions (`rows` int64)."""
        index = rows.to(self.keys.device)
        with writable():
            self.keys, self.values = self._rows(self.keys, index), self._rows(self.values, index)
            self.lengths = self.lengths[rows.cpu()]
        self._refresh()

    def joined(self, others: Sequence[Tail]) -> Tail:
        """A copy of these rows, and of those of others behind them."""
        every = [self, *others]
        longest = max(each.longest for each in every)
        with writable():
            keys = torch.cat([each.keys[:, :, :0] for each in every])
            values = torch.cat([each.values[:, :, :0] for each in every])
            twin = Tail(keys, values, max(FIRST_CAPACITY, longest), self.limit)
            twin.lengths = torch.cat([each.lengths for each in every])
        twin._reserve(longest)
        last = 0
        for each in every:
            first, last = last, last + len(each.lengths)
            for into, held in zip((twin.keys, twin.values), (each.keys, each.values), strict=True):
                into[first:last, :, : each.longest] = held[:, :, : each.longest]
        twin._refresh()
        return twin

    def clone(self) -> Tail:
        """An independent copy."""
        with writable():
            return self._over(self.keys.clone(), self.values.clone(), self.lengths.clone())

    def bytes(self) -> dict[str, int]:
        """Bytes allocated, by kind."""
        return {
            "tail_keys": self.keys.nbytes,
            "tail_values": self.values.nbytes,
            "indices": self.lengths.nbytes + (0 if self.lengths_there is self.lengths else self.lengths_there.nbytes),
        }

    def used_bytes(self) -> int:
        """Bytes of the tokens actually there."""
        heads, _, dim = self.keys.shape[1:]
        return int(self.lengths.sum()) * heads * (dim + self.values.shape[-1]) * self.keys.element_size()

    def _over(self, keys: Tensor, values: Tensor, lengths: Tensor) -> Tail:
        """A tail over other buffers [R, H, C, D] and [R, H, C, Dv], of lengths [R]."""
        twin = Tail(keys, values, capacity=0, limit=self.limit)
        twin.keys, twin.values, twin.lengths = keys, values, lengths
        twin._refresh()
        return twin

    def _write(self, row: int, start: int, keys: Tensor, values: Tensor) -> None:
        stop = start + keys.shape[1]
        self.keys[row, :, start:stop].copy_(keys.detach())
        self.values[row, :, start:stop].copy_(values.detach())

    def _refresh(self) -> None:
        """Everything that follows from the lengths, after those have changed otherwise than by an `append`."""
        if self.keys.device.type == "cpu":
            self.lengths_there = self.lengths
        elif self.lengths_there.shape == self.lengths.shape:
            send_into(self.lengths_there, self.lengths)  # in place: a plan may read it
        else:
            self.lengths_there = sent(self.lengths, self.keys.device)
        self.longest = int(self.lengths.max()) if len(self.lengths) else 0
        self.ragged = bool((self.lengths != self.longest).any())

    def _reserve(self, tokens: int) -> bool:
        capacity = min(self.keys.shape[2], self.values.shape[2])  # an interrupt may have come between the two
        if tokens <= capacity:
            return False
        capacity = max(FIRST_CAPACITY, tokens, int(capacity * GROWTH))
        if self.limit is not None:
            # A chunk may lead beyond the limit; what it leads to is room enough.
            capacity = max(tokens, min(capacity, self.limit))
        self.keys, self.values = self._grown(self.keys, capacity), self._grown(self.values, capacity)
        return True

    def _rows(self, held: Tensor, index: Tensor) -> Tensor:
        """Rows of a buffer, of which only what tokens fill is copied where much of it is room: twice, on the way."""
        if 2 * self.longest > held.shape[2]:
            return held.index_select(0, index)
        chosen = held.new_empty(len(index), *held.shape[1:])
        if self.longest:
            chosen[:, :, : self.longest] = held[:, :, : self.longest].index_select(0, index)
        return chosen

    def _grown(self, old: Tensor, capacity: int) -> Tensor:
        rows, heads, _, dim = old.shape
        with writable():
            new = old.new_empty(rows, heads, capacity, dim)
        new[:, :, : self.longest] = old[:, :, : self.longest]
        return new
