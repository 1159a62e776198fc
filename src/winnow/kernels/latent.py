"""Decode attention over latents that all heads share, in plain torch: for devices without kernels for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from winnow.kernels.coordinates import asked_of_keys, numbers, rotated_as_values, sums_of_keys
from winnow.kernels.formats import Block, DenseBlock, Part, parts_of
from winnow.kernels.partials import Partial, finite
from winnow.kernels.segments import AttentionSpec, TailSegments
from winnow.kernels.sizes import check_layer
from winnow.kernels.without_autocast import without_autocast

_LOGITS = 1 << 23
"""Numbers of logits that exist at once."""
_LEAST, _MOST = 256, 8192
"""Latents that are attended to at once."""


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
        device = tail.keys.device
        self._shared = [(block, torch.tensor(sharing, device=device)) for block, sharing in shared.values()]

    def run(self, latent: Tensor, rotated: Tensor) -> Tensor:
        """Sums of latents [R, Hq, Q, C] fp32 for queries [R, Hq, Q, C] of latents and [R, Hq, Q, Dr] of rotated keys.

        Query i of a row sees its whole prefix and the tail up to its own token. A query that sees nothing gives zeros.
        Raises ValueError for a tail length beyond the capacity.
        """
        with without_autocast(latent.device):
            return self._sums(latent, rotated)

    def _sums(self, latent: Tensor, rotated: Tensor) -> Tensor:
        rows, heads, tokens, size = latent.shape
        asking = torch.cat([latent, rotated], dim=-1).float().flatten(1, 2) * self.spec.scaling
        together = self._over_tail(asking[..., :size], asking[..., size:], heads, tokens)
        for block, sharing in self._shared:
            asked = asking[sharing].flatten(0, 1)
            found = self._over_block(block, asked[:, :size], asked[:, size:])
            found = Partial(*(each.unflatten(0, (len(sharing), heads * tokens)) for each in found))
            joined = Partial(*(each[sharing] for each in together)).joined(found)
            together = Partial(
                *(each.index_copy(0, sharing, part) for each, part in zip(together, joined, strict=True))
            )
        sinks = None if self.spec.sinks is None else self.spec.sinks.to(asking).repeat_interleave(tokens)
        return together.normalized(sinks).view(rows, heads, tokens, -1)

    def _over_tail(self, latent: Tensor, rotated: Tensor, heads: int, tokens: int) -> Partial:
        """latent [R, Hq·Q, C], rotated [R, Hq·Q, Dr]; query i of a row sees the tail up to its own token."""
        lengths, capacity = self.tail.lengths, self.tail.keys.shape[2]
        if bool((lengths < 0).any()) or bool((lengths > capacity).any()):
            raise ValueError(f"tail lengths {lengths.tolist()} exceed the capacity {capacity}")
        longest = int(lengths.max()) if len(lengths) else 0
        held = self.tail.keys[:, 0, :longest], self.tail.values[:, 0, :longest]
        together = Partial.nothing(latent, latent.shape[-1])
        last = (lengths[:, None] - torch.arange(tokens - 1, -1, -1, device="cpu")).repeat(1, heads).to(latent.device)
        ragged = bool((lengths < longest).any())
        for start, stop in _pieces(longest, latent.shape[0] * latent.shape[1]):
            position = torch.arange(start, stop, device=latent.device)
            latents, keys = (part[:, start:stop] for part in held)
            if ragged:
                # Room behind a shorter tail may hold anything, and 0·NaN is NaN.
                unused = (position >= lengths.to(latent.device)[:, None])[..., None]
                latents, keys = latents.masked_fill(unused, 0), keys.masked_fill(unused, 0)
            logits = latent @ latents.float().mT + rotated @ keys.float().mT
            together = together.joined(self._weighed(logits, latents, position >= last[..., None]))
        return together

    def _over_block(self, block: Block, latent: Tensor, rotated: Tensor) -> Partial:
        """latent [P, C] and rotated [P, Dr], which see all that the block reads."""
        together = Partial.nothing(latent, latent.shape[-1])
        for part in parts_of(block):
            together = together.joined(self._over_part(part, latent, rotated))
        return together

    def _over_part(self, part: Part, latent: Tensor, rotated: Tensor) -> Partial:
        """The same for slots of one format, which stay in the coordinates in which they are written."""
        asking, turned = asked_of_keys(part, latent[None]), rotated_as_values(part, rotated)
        (asked,) = asking.queries
        found = Partial.nothing(latent, latent.shape[-1])
        for latents, keys in _slots(part, len(latent)):
            logits = asked @ latents.float().mT + turned @ keys.float().mT
            logits = logits if asking.bias is None else logits + asking.bias[0]
            found = found.joined(self._weighed(logits, latents, None))
        whole = Partial(*(each[None] for each in found))
        return found._replace(weighted=sums_of_keys(part, whole)[0])

    def _weighed(self, logits: Tensor, latents: Tensor, hidden: Tensor | None) -> Partial:
        """logits [..., P, n] of latents [..., n, C], but for those that are hidden."""
        if self.spec.softcap is not None:
            logits = self.spec.softcap * torch.tanh(logits / self.spec.softcap)
        if hidden is not None:
            logits = logits.masked_fill(hidden, -torch.inf)
        maximum = logits.amax(-1)
        weights = torch.exp(logits - finite(maximum)[..., None])
        return Partial(maximum, weights.sum(-1), weights @ latents.float())


def _slots(part: Part, queries: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Latents [n, C] and rotated keys [n, Dr] of a part as they are written, some at a time."""
    first, stop = int(part.starts[0]), int(part.stops[0])
    for start, end in _pieces(stop - first, queries):
        span = slice(first + start, first + end)
        if isinstance(part, DenseBlock):
            yield part.keys[span], part.values[span]  # where they lie, without a copy
        else:
            yield numbers(part, torch.arange(span.start, span.stop, device=part.device))


def _pieces(count: int, queries: int) -> Iterator[tuple[int, int]]:
    """Spans of `count` latents such that not too many logits exist at once."""
    step = min(max(_LOGITS // max(queries, 1), _LEAST), _MOST)
    return ((start, min(start + step, count)) for start in range(0, count, step))
