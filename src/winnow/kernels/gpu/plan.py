"""Decode attention of one layer on a GPU: tables made once, a few launches at every step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.kernels.formats import Block, parts_of
from winnow.kernels.gpu.asking import ASKED_COLUMNS, asking_row, asks_differently, prepare_queries
from winnow.kernels.gpu.branches import side_by_side
from winnow.kernels.gpu.chunks import FILLED_FROM, OF_A_PROCESSOR, OWNER, PACKED_OF_A_PROCESSOR, Span, chunk_slots, cut
from winnow.kernels.gpu.decode import attend_chunks
from winnow.kernels.gpu.forms import ELEMENTS, Forms, dense_form, dense_row, forms_of, table_row
from winnow.kernels.gpu.launching import CHUNKS_TOGETHER, WARPS, asking, attending
from winnow.kernels.gpu.merging import join_chunks
from winnow.kernels.gpu.precision import product_dtype
from winnow.kernels.gpu.scratch import Needs, Scratch
from winnow.kernels.gpu.tiles import tile_width
from winnow.kernels.gpu.turning import turn_of
from winnow.kernels.segments import AttentionSpec, TailSegments
from winnow.kernels.sizes import check_layer, check_query
from winnow.transfers import sent


class Launch(NamedTuple):
    """The chunks of parts of one form, which one launch attends to."""

    forms: Forms
    chunks: Tensor
    """int64 [C, COLUMNS] on the device."""
    lines: int
    """The first line of the partial results."""
    asks: bool
    """True if keys are asked by queries of their own."""
    tail: bool
    """True if chunks of the tail are among them."""


class Slice(NamedTuple):
    """Some neighboring tokens of a query, and where their output goes."""

    query: Tensor
    """[R, Hq, q, D]"""
    output: Tensor
    """[R, q, Hq, Dv], contiguous within a row."""
    group: int
    later: int
    """New tokens behind them, which the tail holds already and none of them sees."""


class TritonPlan:
    """Decode attention of one layer; tables, and memory of the steps, are made once.

    Where the tail keeps its lengths on the device, too, a step sends nothing there.
    """

    def __init__(self, prefixes: Sequence[Block | None], tail: TailSegments, spec: AttentionSpec) -> None:
        """Raises ValueError when prefixes and tail do not fit together."""
        self.sizes = check_layer(prefixes, tail)
        self.tail = tail
        self.spec = spec
        self._product = product_dtype(tail.keys.dtype, tail.values.dtype)
        self._device = tail.keys.device
        self._current = torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()
        self._alive = list(prefixes)
        sinks = spec.sinks
        self._sinks = None if sinks is None else sinks.detach().to(self._device, torch.float32).contiguous()
        self._make_tables(prefixes)
        self._scratch: Scratch | None = None

    def nbytes(self) -> int:
        """Bytes of tensors beyond prefixes and tail: tables, and memory kept for steps."""
        held = [self._tables, self._askings, self._order, self._bounds, self._turned]
        held += [launch.chunks for branch in self._branches for launch in branch]
        held += [] if self._sinks is None else [self._sinks]
        return sum(each.nbytes for each in held) + (0 if self._scratch is None else self._scratch.nbytes())

    def run(self, query: Tensor) -> Tensor:
        """query [R, Hq, Q, D] -> output [R, Q, Hq, Dv]; the tail already holds the Q new tokens.

        Raises ValueError for a query that does not fit.
        """
        # Triton launches on the current device, which need not be the one of this layer.
        with self._current:
            return self._run(query)

    def _run(self, query: Tensor) -> Tensor:
        group = check_query(query, self.sizes.asked(), self.tail.keys.dtype, self._sinks)
        query = query if query.stride(3) == 1 else query.contiguous()
        rows, query_heads, tokens, _ = query.shape
        output = query.new_empty(rows, tokens, query_heads, self.sizes.value_dim)
        scratch = self._room_for(query_heads, group, tokens)
        for each in _slices(query, output, group, scratch.tokens):
            side_by_side(self._device, [partial(self._attend_all, some, each, scratch) for some in self._branches])
            self._join(each, scratch)
        return output

    # --- once -------------------------------------------------------------------------------------------------------

    def _make_tables(self, prefixes: Sequence[Block | None]) -> None:
        entries, askings = _Lines(), _Lines()
        spans: dict[tuple[Forms, bool], list[Span]] = {}
        for row, prefix in enumerate(prefixes):
            for part in parts_of(prefix) if prefix is not None else ():
                if not part.slots:
                    continue
                entry = entries.add(table_row(part))
                asks = asks_differently(part)
                asking = askings.add(asking_row(row, part)) if asks else row
                span = Span(row, entry, asking, part.starts, part.stops)
                spans.setdefault((forms_of(part), asks), []).append(span)
        slots = sum(_slots(each) for of_form in spans.values() for each in of_form)
        cuts = {each: [cut(of_form, chunk_slots(slots, self._chunks(each[0])))] for each, of_form in spans.items()}
        tail_dtype, (_, _, dim, value_dim) = self.tail.keys.dtype, self.sizes
        tails = (Forms(dense_form(tail_dtype, dim), dense_form(tail_dtype, value_dim)), False)
        # One launch with the dense parts of prefixes.
        grown = self._tail_spans(entries)
        cuts.setdefault(tails, []).append(cut(grown, chunk_slots(sum(map(_slots, grown)), self._chunks(tails[0]))))
        self._make_launches([(*each, torch.cat(chunks)) for each, chunks in cuts.items()])
        self._tables, self._askings = entries.table(self._device), askings.table(self._device)
        self._sets = len(askings.lines)

    def _chunks(self, forms: Forms) -> int:
        """Chunks into which a layer of such slots is cut."""
        busy = forms.packed and self._product.itemsize == 2
        return (PACKED_OF_A_PROCESSOR if busy else OF_A_PROCESSOR) * _processors(self._device)

    def _make_launches(self, cuts: Sequence[tuple[Forms, bool, Tensor]]) -> None:
        rows, heads, _, _ = self.sizes
        launches: list[Launch] = []
        lines = 0
        for forms, asks, chunks in cuts:
            if len(chunks):
                tail = bool((chunks[:, FILLED_FROM] >= 0).any())
                launches.append(Launch(forms, sent(chunks, self._device), lines, asks, tail))
            lines += len(chunks)
        # Those of prepared queries wait for these, and nothing else.
        prepared = [each for each in launches if each.asks]
        self._branches = [*([prepared] if prepared else []), *([each] for each in launches if not each.asks)]
        owner = torch.cat([chunks[:, OWNER] for _, _, chunks in cuts])
        turned = [chunks.new_full((len(chunks),), forms.turned_values, dtype=torch.int8) for forms, _, chunks in cuts]
        self._turns = any(forms.turned_values for forms, _, _ in cuts)
        counts = torch.bincount(owner, minlength=rows * heads)
        bounds = torch.cat([torch.zeros(1, dtype=torch.int64, device="cpu"), counts.cumsum(0)])
        self._order, self._bounds = (sent(each, self._device) for each in (owner.argsort(stable=True), bounds))
        self._turned = sent(torch.cat(turned), self._device)

    def _tail_spans(self, entries: _Lines) -> list[Span]:
        """The tail's whole buffers; how much of them is filled is looked up at every step."""
        rows, heads, room, _ = self.tail.keys.shape
        entry = entries.add(dense_row(self.tail.keys.data_ptr(), self.tail.values.data_ptr()))
        starts = torch.arange(rows * heads, device="cpu").view(rows, heads) * room
        return [Span(row, entry, row, starts[row], starts[row] + room, grows=True) for row in range(rows)]

    # --- at every step ----------------------------------------------------------------------------------------------

    def _room_for(self, query_heads: int, group: int, tokens: int) -> Scratch:
        """Memory of a step, kept where it is small; that of a turn of many tokens lasts as long as the call."""
        kept = self._scratch
        if kept is not None and kept.query_heads == query_heads and tokens <= kept.tokens:
            return kept
        _, _, dim, value_dim = self.sizes
        chunks = self._turned.shape[0]
        needs = Needs(self._sets, chunks, query_heads, group, dim, value_dim, self._product)
        scratch = needs.made(needs.tokens_at_a_time(tokens), self._device)
        if needs.are_small(tokens) and kept is None:  # a graph may go on writing to one that is kept
            self._scratch = scratch
        return scratch

    def _attend_all(self, launches: Sequence[Launch], piece: Slice, scratch: Scratch) -> None:
        """Partial results of a branch's launches, which all have prepared queries or none has."""
        if launches[0].asks:
            self._prepare(piece, scratch)
        for launch in launches:
            self._attend(launch, piece, scratch)

    def _prepare(self, piece: Slice, scratch: Scratch) -> None:
        """The queries of parts whose keys are asked by others than the model's."""
        query, tokens = piece.query, piece.query.shape[2]
        heads, dim = self.sizes.heads, self.sizes.key_dim
        sizes, (steps, factor) = asking(piece.group * tokens), turn_of(dim)
        prepare_queries[(self._sets, heads, sizes.blocks)](
            *(self._askings, query, *query.stride()[:3]),
            *(scratch.asked_queries, scratch.bias, heads, piece.group, tokens),
            ELEMENT=ELEMENTS[query.dtype],
            DIM=dim,
            WIDE=tile_width(dim),
            ASKED=sizes.asked,
            COLUMNS=ASKED_COLUMNS,
            STEPS=steps,
            FACTOR=factor,
            num_warps=sizes.warps,
            num_stages=sizes.stages,
        )

    def _attend(self, launch: Launch, piece: Slice, scratch: Scratch) -> None:
        """Partial results of the chunks of a launch."""
        _, heads, dim, value_dim = self.sizes
        query, tokens = piece.query, piece.query.shape[2]
        queries, strides = query, query.stride()[:3]
        if launch.asks:
            queries, strides = scratch.asked_queries, (query.shape[1] * tokens * dim, tokens * dim, dim)
        product, wide = self._product, tile_width(max(dim, value_dim))
        sizes = attending(launch.forms, wide, product.itemsize, piece.group * tokens)
        attend_chunks[(len(launch.chunks), sizes.blocks)](
            *(launch.chunks, self._tables, queries, *strides, scratch.bias, self._lengths()),
            *(scratch.maxima, scratch.totals, scratch.sums, launch.lines, self.spec.scaling, self.spec.softcap or 0.0),
            *(heads, piece.group, tokens, piece.later),
            KEYS=launch.forms.keys,
            VALUES=launch.forms.values,
            BIASED=launch.asks,
            TAIL=launch.tail,
            CAUSAL=launch.tail and tokens > 1,
            CAPPED=self.spec.softcap is not None,
            IN_STEPS=launch.forms.in_steps,
            VALUE_DIM=value_dim,
            ASKED=sizes.asked,
            SLOTS=sizes.slots,
            PRODUCT=ELEMENTS[product],
            num_warps=sizes.warps,
            num_stages=sizes.stages,
            **_limit(sizes.registers),
        )

    def _join(self, piece: Slice, scratch: Scratch) -> None:
        """Output of what the chunks found."""
        rows, heads, _, value_dim = self.sizes
        tokens = piece.query.shape[2]
        steps, factor = turn_of(value_dim)
        join_chunks[(rows * heads * piece.group * tokens,)](
            *(self._order, self._bounds, self._turned, scratch.maxima, scratch.totals, scratch.sums, self._sinks),
            *(piece.output, piece.output.stride(0), heads, piece.group, tokens),
            SINKS=self._sinks is not None,
            TURNED=self._turns,
            VALUE_DIM=value_dim,
            VALUE_WIDE=tile_width(value_dim),
            CHUNKS=CHUNKS_TOGETHER,
            STEPS=steps,
            FACTOR=factor,
            num_warps=WARPS,
        )

    def _lengths(self) -> Tensor:
        there = self.tail.lengths_there
        return self.tail.lengths.to(self._device) if there is None else there


class _Lines:
    """Lines of a table on their way to the device."""

    def __init__(self) -> None:
        self.lines: list[list[int]] = []

    def add(self, line: list[int]) -> int:
        """The number of a new line."""
        self.lines.append(line)
        return len(self.lines) - 1

    def table(self, device: torch.device) -> Tensor:
        """int64, all lines."""
        return sent(torch.tensor(self.lines, dtype=torch.int64, device="cpu"), device)


def _slices(query: Tensor, output: Tensor, group: int, size: int) -> Iterator[Slice]:
    """Queries [R, Hq, Q, D] and their output [R, Q, Hq, Dv], so many tokens at a time."""
    tokens = query.shape[2]
    if tokens <= size:
        # The usual step, for which torch is asked for nothing.
        yield Slice(query, output, group, 0)
        return
    for first in range(0, tokens, size):
        stop = min(first + size, tokens)
        yield Slice(query[:, :, first:stop], output[:, first:stop], group, tokens - stop)


def _slots(span: Span) -> int:
    return int((span.stops - span.starts).sum())


@cache
def _processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; the interpreter counts as one."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _limit(registers: int | None) -> dict[str, int]:
    """Registers of a thread at most, as Triton takes the number; AMD's compiler knows no such option."""
    return {} if registers is None or torch.version.hip else {"maxnreg": registers}
