"""Decode attention over latents that all heads share, in plain torch: matrix products, whatever the device.

With many query heads per latent this is bound by arithmetic and not by memory, which is what libraries of matrix
products are best at; the compiled kernels are for the few queries that share a KV head elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.kernels.formats import Block, DenseBlock, Part, parts_of
from winnow.kernels.segments import AttentionSpec, TailSegments
from winnow.kernels.sizes import check_layer

_LOGITS = 1 << 23
"""Numbers of logits that exist at once."""
_LEAST, _MOST = 256, 8192
"""Latents that are attended to at once."""


class Sums(NamedTuple):
    """Softmax numerators of P queries relative to `maximum`, not yet normalized."""

    maximum: Tensor
    """[..., P]; -inf where nothing is visible."""
    total: Tensor
    """[..., P]"""
    weighted: Tensor
    """[..., P, C] sums of latents."""

    def joined(self, other: Sums) -> Sums:
        """Over what both cover."""
        maximum = torch.maximum(self.maximum, other.maximum)
        mine, its = (torch.exp(each.maximum - _finite(maximum)) for each in (self, other))
        total = mine * self.total + its * other.total
        return Sums(maximum, total, mine[..., None] * self.weighted + its[..., None] * other.weighted)

    def of_rows(self, rows: Tensor) -> Sums:
        """Those of some rows of [R, P]."""
        return Sums(*(each[rows] for each in self))


class LatentAttention:
    """Attention of one layer over latents and rotated keys: compressed ones of every row, and a dense tail.

    A block's keys are the latents [S, C], its values the rotated keys [S, Dr], as transformers caches them; the sum
    that attention gives is one of latents.
    """

    def __init__(self, prefixes: Sequence[Block | None], tail: TailSegments, spec: AttentionSpec) -> None:
        """Raises ValueError when prefixes and tail do not fit together, or there are several heads."""
        sizes = check_layer(prefixes, tail)
        if sizes.heads != 1:
            raise ValueError(f"latents are of one head that all share, not of {sizes.heads}")
        self.tail = tail
        self.spec = spec
        shared: dict[int, tuple[Block, list[int]]] = {}
        for row, block in enumerate(prefixes):
            if block is not None:
                shared.setdefault(id(block), (block, []))[1].append(row)
        self._shared = list(shared.values())

    def run(self, latent: Tensor, rotated: Tensor) -> Tensor:
        """Sums of latents [R, Hq, Q, C] fp32 for queries [R, Hq, Q, C] of latents and [R, Hq, Q, Dr] of rotated keys.

        Query i of a row sees its whole prefix and the tail up to its own token. A query that sees nothing gives zeros.
        Raises ValueError for a tail length beyond the capacity.
        """
        rows, heads, tokens, _ = latent.shape
        queries = torch.cat([latent, rotated], dim=-1).float().flatten(1, 2) * self.spec.scaling
        sums = self._over_tail(queries, heads, tokens)
        for block, sharing in self._shared:
            index = torch.tensor(sharing, device=queries.device)
            found = self._over_block(block, queries[index].flatten(0, 1))
            found = Sums(*(each.unflatten(0, (len(sharing), heads * tokens)) for each in found))
            joined = sums.of_rows(index).joined(found)
            sums = Sums(*(each.index_copy(0, index, part) for each, part in zip(sums, joined, strict=True)))
        return self._normalized(sums, heads, tokens).view(rows, heads, tokens, -1)

    def _over_tail(self, queries: Tensor, heads: int, tokens: int) -> Sums:
        """queries [R, Hq·Q, C + Dr]; query i of a row sees the tail up to its own token."""
        lengths, capacity = self.tail.lengths, self.tail.keys.shape[2]
        if bool((lengths < 0).any()) or bool((lengths > capacity).any()):
            raise ValueError(f"tail lengths {lengths.tolist()} exceed the capacity {capacity}")
        longest = int(lengths.max()) if len(lengths) else 0
        latents, rotated = (part[:, 0, :longest] for part in (self.tail.keys, self.tail.values))
        sums = _nothing(queries, latents.shape[-1])
        last = (lengths[:, None] - torch.arange(tokens - 1, -1, -1)).repeat(1, heads).to(queries.device)
        for start, stop in _pieces(longest, queries.shape[0] * queries.shape[1]):
            position = torch.arange(start, stop, device=queries.device)
            hidden = position >= last[..., None]
            # Room behind a shorter tail may hold anything, and 0·NaN is NaN.
            unused = (position >= lengths.to(queries.device)[:, None])[..., None]
            here, turned = (part[:, start:stop].masked_fill(unused, 0) for part in (latents, rotated))
            sums = sums.joined(self._sums(queries, here, turned, hidden))
        return sums

    def _over_block(self, block: Block, queries: Tensor) -> Sums:
        """queries [P, C + Dr], which see all that the block reads."""
        sums = _nothing(queries, self.tail.keys.shape[-1])
        for part in parts_of(block):
            for latents, rotated in _slots(part, len(queries)):
                sums = sums.joined(self._sums(queries, latents, rotated, None))
        return sums

    def _sums(self, queries: Tensor, latents: Tensor, rotated: Tensor, hidden: Tensor | None) -> Sums:
        """queries [..., P, C + Dr] over latents [..., n, C] and rotated keys [..., n, Dr]."""
        latents, size = latents.float(), latents.shape[-1]
        logits = queries[..., :size] @ latents.mT + queries[..., size:] @ rotated.float().mT
        if self.spec.softcap is not None:
            logits = self.spec.softcap * torch.tanh(logits / self.spec.softcap)
        if hidden is not None:
            logits = logits.masked_fill(hidden, -torch.inf)
        maximum = logits.amax(-1)
        weights = torch.exp(logits - _finite(maximum)[..., None])
        return Sums(maximum, weights.sum(-1), weights @ latents)

    def _normalized(self, sums: Sums, heads: int, tokens: int) -> Tensor:
        """[R, Hq·Q, C]: the weighted means, with the sinks in the denominator where there are any."""
        maximum, total = _finite(sums.maximum), sums.total
        if self.spec.sinks is not None:
            sinks = self.spec.sinks.to(total).repeat_interleave(tokens)
            total = total + torch.exp(sinks - maximum)
        return sums.weighted / total.masked_fill(total == 0, 1.0)[..., None]


def _slots(part: Part, queries: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Latents [n, C] and rotated keys [n, Dr] of a part, some at a time."""
    first, stop = int(part.starts[0]), int(part.stops[0])
    for start, end in _pieces(stop - first, queries):
        span = slice(first + start, first + end)
        if isinstance(part, DenseBlock):
            yield part.keys[span], part.values[span]  # where they lie, without a copy
        else:
            yield part.recover(torch.arange(span.start, span.stop, device=part.device))


def _pieces(count: int, queries: int) -> Iterator[tuple[int, int]]:
    """Spans of `count` latents such that not too many logits exist at once."""
    step = min(max(_LOGITS // max(queries, 1), _LEAST), _MOST)
    return ((start, min(start + step, count)) for start in range(0, count, step))


def _nothing(queries: Tensor, size: int) -> Sums:
    shape = queries.shape[:-1]
    return Sums(queries.new_full(shape, -torch.inf), queries.new_zeros(shape), queries.new_zeros(*shape, size))


def _finite(maximum: Tensor) -> Tensor:
    """The maximum, 0 where nothing is visible: -inf - -inf would be NaN."""
    return maximum.masked_fill(maximum == -torch.inf, 0.0)
