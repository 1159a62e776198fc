"""A scorer that listens while a prompt is read once more, layer by layer and chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from winnow.cache.projection import output_projection
from winnow.cache.replay_words import ReplayPart
from winnow.kernels.interface import AttentionSpec
from winnow.score import Replayer
from winnow.view import Extra, LayerView, ReplayView


class Replayed(NamedTuple):
    """Worth of a prompt's tokens as a replay of it told."""

    replayer: Replayer
    scores: list[list[Tensor]]
    """[H, N] fp32 of every layer of every row, without padding."""
    seconds: float
    """Time of the replay."""


class ReadAgain(NamedTuple):
    """One layer of a row while a part of it is read again."""

    attention: nn.Module
    spec: AttentionSpec
    queries: Tensor
    """[Hq, n, D] of what is read."""
    keys: Tensor
    """[H, N + n, D] of the prompt and of what is read."""
    values: Tensor
    """[H, N + n, Dv]"""


class Listening:
    """Scorer hearing one row read again: scores [H, N] of each layer, filled in chunk by chunk."""

    def __init__(self, replayer: Replayer, row: int, heads: Sequence[int], length: int) -> None:
        """heads: KV heads of every compressed layer; length: N, tokens of the row."""
        self.row = row
        self.scores = [torch.zeros(count, length, dtype=torch.float32, device="cpu") for count in heads]
        self.norms: dict[int, Tensor] = {}
        """[n] norms of the hidden states that each layer's attention was given last."""
        self.part: ReplayPart | None = None
        """Part that is read now."""
        self._replayer = replayer
        self._length = length

    def hear(self, layer: int, read: ReadAgain) -> None:
        """A layer attended to a part."""
        assert self.part is not None
        start, stop = self.part.start, self.part.stop
        first = min(self._replayer.sinks, start)
        # A[i, t] over [first tokens | chunk | replay]
        pieces = (slice(0, first), slice(start, stop), slice(self._length, None))
        keys, values = (torch.cat([each[:, piece] for piece in pieces], dim=1) for each in (read.keys, read.values))
        view = LayerView(
            layer=layer,
            layers=len(self.scores),
            queries=read.queries,
            keys=keys,
            values=values,
            scaling=read.spec.scaling,
            softcap=read.spec.softcap,
            sinks=read.spec.sinks,
            output_projection=self._output_projection(read),
        )
        worth = self._replayer.replayed(ReplayView(view, first, stop - start, self.norms.get(layer)))
        self.scores[layer] = self.scores[layer].to(worth.device)
        self.scores[layer][:, start:stop] = worth

    def _output_projection(self, read: ReadAgain) -> Tensor | None:
        if Extra.OUTPUT_PROJECTION not in self._replayer.extras:
            return None
        return output_projection(read.attention, read.queries.shape[0], read.values.shape[-1])
