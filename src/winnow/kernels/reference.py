"""Decode attention in plain torch: any device, no compiler; the definition the native kernels are held to.

Slots are gathered into blocks of equal size that never cross a head, so that heads of any length become one
batched product; what blocks compute is reduced to heads by index, and prefix and tail merge by log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.kernels.coordinates import Asking, asked_of_keys, numbers, rotated_as_values
from winnow.kernels.formats import Block, Part, parts_of
from winnow.kernels.partials import Partial, finite
from winnow.kernels.segments import AttentionSpec, TailSegments
from winnow.kernels.sizes import check_layer, check_query
from winnow.kernels.without_autocast import without_autocast

BLOCK = 64
PIECE = 256
"""Blocks that are gathered, and unpacked where they are packed, at once."""


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
    head = torch.repeat_interleave(torch.arange(len(counts), device="cpu"), counts)
    index_in_head = torch.arange(len(head), device="cpu") - (counts.cumsum(0) - counts)[head]
    slots = (starts[head] + index_in_head * BLOCK)[:, None] + torch.arange(BLOCK, device="cpu")
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
        group = check_query(query, self.sizes.asked(), self.tail.keys.dtype, self.spec.sinks)
        with without_autocast(query.device):
            return self._attended(query, group)

    def _attended(self, query: Tensor, group: int) -> Tensor:
        rows, heads, dim, value_dim = self.sizes
        tokens = query.shape[2]
        queries = query.float().reshape(rows, heads, group * tokens, dim) * self.spec.scaling
        together = self._tail(queries, tokens)
        if any(self.parts):
            per_row = [self._prefix(row, queries[row]) for row in range(rows)]
            together = together.joined(Partial(*map(torch.stack, zip(*per_row, strict=True))))
        out = together.normalized(self._sinks(together.maximum, group, tokens)).reshape(
            rows, heads * group, tokens, value_dim
        )
        return out.transpose(1, 2).to(query.dtype).contiguous()

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
        limit = lengths[:, None] - torch.arange(tokens - 1, -1, -1, device="cpu")
        group = queries.shape[2] // max(tokens, 1)
        hidden = position >= limit.repeat(1, group).to(device)[:, None, :, None]
        unused = position[:, None] >= lengths.to(device)[:, None, None, None]
        keys, values = self.tail.keys[:, :, :longest], self.tail.values[:, :, :longest]
        logits = self._logits(queries, keys).masked_fill(hidden, -torch.inf)
        if not longest:
            return Partial.nothing(queries, self.sizes.value_dim)
        maximum = logits.amax(-1)
        weights = torch.exp(logits - finite(maximum)[..., None])
        return Partial(maximum, weights.sum(-1), weights @ values.float().masked_fill(unused, 0.0))

    def _prefix(self, row: int, queries: Tensor) -> Partial:
        """queries [H, G·Q, D] of one row, which see the whole prefix."""
        together = Partial.nothing(queries, self.sizes.value_dim)
        for part in self.parts[row]:
            found, asking = Partial.nothing(queries, self.sizes.value_dim), asked_of_keys(part, queries)
            for blocks in self.blocks[id(part)]:
                found = self._add_blocks(found, part, blocks, asking)
            together = together.joined(found._replace(weighted=rotated_as_values(part, found.weighted)))
        return together

    def _add_blocks(self, before: Partial, part: Part, blocks: Blocks, asking: Asking) -> Partial:
        """The partial result over what `before` covers and some more blocks of a part, in its values' coordinates."""
        head = blocks.head
        keys, values = numbers(part, blocks.slots)
        bias = None if asking.bias is None else asking.bias[head]
        logits = self._logits(asking.queries[head], keys, bias).masked_fill(blocks.absent, -torch.inf)
        block_maximum = logits.amax(-1)
        maximum = before.maximum.scatter_reduce(0, head[:, None].expand_as(block_maximum), block_maximum, "amax")
        weights = torch.exp(logits - maximum[head][..., None])
        scale = torch.exp(before.maximum - finite(maximum))
        return Partial(
            maximum,
            (scale * before.total).index_add(0, head, weights.sum(-1)),
            (scale[..., None] * before.weighted).index_add(0, head, weights @ values),
        )

    def _sinks(self, maximum: Tensor, group: int, tokens: int) -> Tensor | None:
        """[H, G·Q] logits of the model's attention sinks, beside those of which maximum [R, H, G·Q] is."""
        sinks = self.spec.sinks
        return None if sinks is None else sinks.to(maximum).reshape(-1, group, 1).expand(-1, -1, tokens).flatten(1)
