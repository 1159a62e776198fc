"""Decode attention in plain torch: any device, no compiler; the definition the native kernels are held to.

Slots are gathered into blocks of equal size that never cross a head, so that heads of any length become one
batched product; what blocks compute is reduced to heads by index, and prefix and tail merge by log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.kernels.formats import Block, PackedBlock, Part, parts_of
from winnow.kernels.formats.hadamard import hadamard
from winnow.kernels.segments import AttentionSpec, TailSegments
from winnow.kernels.sizes import check_layer, check_query

BLOCK = 64
PIECE = 256
"""Blocks that are gathered, and unpacked where they are packed, at once."""


class Partial(NamedTuple):
    """Softmax numerators relative to `maximum`, not yet normalized; P queries share a KV head."""

    maximum: Tensor
    """[..., H, P]; -inf where nothing is visible."""
    total: Tensor
    """[..., H, P]"""
    weighted: Tensor
    """[..., H, P, Dv]"""


class Asking(NamedTuple):
    """Queries as they meet the keys of a part: rotating a few queries costs less than all keys."""

    queries: Tensor
    """[H, P, D], in the coordinates of the part's keys."""
    bias: Tensor | None
    """[H, P, 1], what logits lack because a mean was subtracted from the keys."""


class Blocks(NamedTuple):
    """A prefix cut into blocks of BLOCK slots of one head each."""

    slots: Tensor
    """[B, BLOCK] slot indices; the last block of a head repeats its last slot."""
    absent: Tensor
    """[B, 1, BLOCK] bool, true for the repetitions."""
    head: Tensor
    """[B] KV head of a block."""


def cut_blocks(prefix: Part) -> list[Blocks]:
    """The blocks of a prefix in pieces, on its device."""
    starts, stops = prefix.starts, prefix.stops
    counts = (stops - starts + BLOCK - 1) // BLOCK
    head = torch.repeat_interleave(torch.arange(len(counts)), counts)
    index_in_head = torch.arange(len(head)) - (counts.cumsum(0) - counts)[head]
    slots = (starts[head] + index_in_head * BLOCK)[:, None] + torch.arange(BLOCK)
    last = stops[head][:, None] - 1
    device = prefix.device
    whole = Blocks(slots.clamp(max=last).to(device), (slots > last)[:, None].to(device), head.to(device))
    return [Blocks(*piece) for piece in zip(*(each.split(PIECE) for each in whole), strict=True)]


class ReferencePlan:
    """Decode attention of one layer; what does not change between steps is worked out once."""

    def __init__(self, prefixes: Sequence[Block | None], tail: TailSegments, spec: AttentionSpec) -> None:
        """Raises ValueError when prefixes and tail do not fit together."""
        self.sizes = check_layer(prefixes, tail)
        self.tail = tail
        self.spec = spec
        self.parts = [[part for part in parts_of(prefix) if part.slots] if prefix else [] for prefix in prefixes]
        self.blocks = {id(part): cut_blocks(part) for parts in self.parts for part in parts}

    def nbytes(self) -> int:
        """Bytes of tensors beyond prefixes and tail: the slots of all blocks."""
        return sum(tensor.nbytes for pieces in self.blocks.values() for blocks in pieces for tensor in blocks)

    def run(self, query: Tensor) -> Tensor:
        """query [R, Hq, Q, D] -> output [R, Q, Hq, Dv]; the tail already holds the Q new tokens."""
        rows, heads, dim, value_dim = self.sizes
        group = check_query(query, self.sizes, self.tail.keys.dtype, self.spec.sinks)
        tokens = query.shape[2]
        queries = query.float().reshape(rows, heads, group * tokens, dim) * self.spec.scaling
        partials = [self._tail(queries, tokens)]
        if any(self.parts):
            per_row = [self._prefix(row, queries[row]) for row in range(rows)]
            partials.append(Partial(*map(torch.stack, zip(*per_row, strict=True))))
        merged = self._merge(partials, group, tokens)
        out = merged.reshape(rows, heads * group, tokens, value_dim).transpose(1, 2)
        return out.to(query.dtype).contiguous()

    def _logits(self, queries: Tensor, keys: Tensor, bias: Tensor | None = None) -> Tensor:
        logits = queries @ keys.float().transpose(-1, -2)
        logits = logits if bias is None else logits + bias
        cap = self.spec.softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def _tail(self, queries: Tensor, tokens: int) -> Partial:
        """queries [R, H, G·Q, D]; query i of a row sees the tail up to its own token."""
        lengths = self.tail.lengths
        capacity = self.tail.keys.shape[2]
        if bool((lengths < 0).any()) or bool((lengths > capacity).any()):
            raise ValueError(f"tail lengths {lengths.tolist()} exceed the capacity {capacity}")
        longest = int(lengths.max()) if len(lengths) else 0
        device = queries.device
        position = torch.arange(longest, device=device)
        limit = lengths[:, None] - torch.arange(tokens - 1, -1, -1)
        group = queries.shape[2] // max(tokens, 1)
        hidden = position >= limit.repeat(1, group).to(device)[:, None, :, None]
        unused = position[:, None] >= lengths.to(device)[:, None, None, None]
        keys, values = self.tail.keys[:, :, :longest], self.tail.values[:, :, :longest]
        logits = self._logits(queries, keys).masked_fill(hidden, -torch.inf)
        if not longest:
            return self._nothing(queries)
        maximum = logits.amax(-1)
        weights = torch.exp(logits - _finite(maximum)[..., None])
        return Partial(maximum, weights.sum(-1), weights @ values.float().masked_fill(unused, 0.0))

    def _prefix(self, row: int, queries: Tensor) -> Partial:
        """queries [H, G·Q, D] of one row, which see the whole prefix."""
        together = self._nothing(queries)
        for part in self.parts[row]:
            asking = _asking(part, queries)
            for blocks in self.blocks[id(part)]:
                together = self._add_blocks(together, part, blocks, asking)
        return together

    def _add_blocks(self, before: Partial, part: Part, blocks: Blocks, asking: Asking) -> Partial:
        """The partial result over what `before` covers and some more blocks."""
        head = blocks.head
        keys, values = part.numbers(blocks.slots) if isinstance(part, PackedBlock) else part.recover(blocks.slots)
        bias = None if asking.bias is None else asking.bias[head]
        logits = self._logits(asking.queries[head], keys, bias).masked_fill(blocks.absent, -torch.inf)
        block_maximum = logits.amax(-1)
        maximum = before.maximum.scatter_reduce(0, head[:, None].expand_as(block_maximum), block_maximum, "amax")
        weights = torch.exp(logits - maximum[head][..., None])
        scale = torch.exp(before.maximum - _finite(maximum))
        sums = weights @ values
        if isinstance(part, PackedBlock) and part.values.rotated:
            sums = hadamard(sums)
        return Partial(
            maximum,
            (scale * before.total).index_add(0, head, weights.sum(-1)),
            (scale[..., None] * before.weighted).index_add(0, head, sums),
        )

    def _nothing(self, queries: Tensor) -> Partial:
        shape = queries.shape[:-1]
        return Partial(
            queries.new_full(shape, -torch.inf),
            queries.new_zeros(shape),
            queries.new_zeros(*shape, self.sizes.value_dim),
        )

    def _merge(self, partials: list[Partial], group: int, tokens: int) -> Tensor:
        """Partial results of all storage formats -> [R, H, G·Q, Dv]."""
        maximum = torch.stack([part.maximum for part in partials]).amax(0)
        sinks = self.spec.sinks
        if sinks is not None:
            sinks = sinks.to(maximum).reshape(-1, group, 1).expand(-1, -1, tokens).flatten(1)
            maximum = torch.maximum(maximum, sinks)
        maximum = _finite(maximum)
        scales = [torch.exp(part.maximum - maximum) for part in partials]
        total = sum(scale * part.total for scale, part in zip(scales, partials, strict=True))
        weighted = sum(scale[..., None] * part.weighted for scale, part in zip(scales, partials, strict=True))
        if sinks is not None:
            total = total + torch.exp(sinks - maximum)
        assert isinstance(total, Tensor)
        assert isinstance(weighted, Tensor)
        return weighted / total.masked_fill(total == 0, 1.0)[..., None]


def _asking(part: Part, queries: Tensor) -> Asking:
    """Queries [H, P, D] for a part."""
    if not isinstance(part, PackedBlock):
        return Asking(queries, None)
    means = part.keys.means
    bias = None if means is None else queries @ means.float()[..., None]
    if part.keys.spreads is not None:
        queries = queries * part.keys.spreads.float()[:, None]
    return Asking(hadamard(queries) if part.keys.rotated else queries, bias)


def _finite(maximum: Tensor) -> Tensor:
    """The maximum, 0 where nothing is visible: -inf - -inf would be NaN."""
    return maximum.masked_fill(maximum == -torch.inf, 0.0)
