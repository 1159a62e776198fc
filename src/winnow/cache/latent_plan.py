"""Decode attention of one layer over latents, and how many new tokens are worth expanding them for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from winnow.cache.latent import Projection
from winnow.cache.prefix import Prefix
from winnow.cache.tail import Tail
from winnow.kernels import native
from winnow.kernels.formats import Block, DenseBlock
from winnow.kernels.interface import AttentionSpec, DecodePlan, TailSegments
from winnow.kernels.latent import LatentAttention
from winnow.kernels.native import NativePlan


class LatentPlan:
    """Decode attention over latents, as `DecodePlan` is it over keys and values.

    A few new tokens attend straight to latents. Many at a time attend to the keys and values that the heads make of
    them: made once for all, layer by layer, and let go.
    """

    def __init__(
        self, prefixes: Sequence[Prefix | None], dense: Tail, spec: AttentionSpec, projection: Projection
    ) -> None:
        """Raises ValueError when prefixes and tail do not fit together."""
        self.spec = spec
        self._projection = projection
        self._blocks = [prefix.block if prefix else None for prefix in prefixes]
        self._tail = dense.segments()
        self._place = projection.place()
        self.kernels = self._kernels()
        """The kernels that attend to latents: the compiled library's, or torch's."""

    @property
    def replays(self) -> bool:
        """True if a graph can hold `run` for a token: the compiled library does all of it."""
        return isinstance(self.kernels, NativePlan)

    def is_current(self) -> bool:
        """True if the heads' matrices lie where they did when the plan was made."""
        return self._projection.place() == self._place

    def run(self, query: Tensor) -> Tensor:
        """query [R, Hq, Q, D] -> output [R, Q, Hq, Dv]; the tail already holds the Q new tokens."""
        with torch.no_grad():
            if query.shape[2] >= self._projection.tokens_to_expand_for:
                return DecodePlan(self._expanded_blocks(), self._expanded_tail(), self.spec).run(query)
            if isinstance(self.kernels, NativePlan):
                return self.kernels.run(query)
            sums = self.kernels.run(*self._projection.absorbed(query))
            return self._projection.output(sums.to(query.dtype)).contiguous()

    def _kernels(self) -> NativePlan | LatentAttention:
        matrices, keys = self._projection.matrices(), self._tail.keys
        if native.reads(keys) and matrices.are_read_with(keys):
            return NativePlan(self._blocks, self._tail, self.spec, matrices)
        return LatentAttention(self._blocks, self._tail, self.spec)

    def _expanded_blocks(self) -> list[Block | None]:
        """Blocks of all heads' keys and values, those of rows that share one once."""
        made = {id(block): self._expanded(block) for block in self._blocks if block is not None}
        return [None if block is None else made[id(block)] for block in self._blocks]

    def _expanded(self, block: Block) -> DenseBlock:
        read = torch.arange(int(block.starts[0]), int(block.stops[0]), device=self._tail.keys.device)
        latents, rotated = (part.to(self._tail.keys.dtype)[None, None] for part in block.recover(read))
        keys, values = (part[0].flatten(0, 1).contiguous() for part in self._projection.expanded(latents, rotated))
        heads = len(keys) // max(len(read), 1)
        return DenseBlock(keys, values, torch.arange(heads + 1, device="cpu") * len(read))

    def _expanded_tail(self) -> TailSegments:
        longest = int(self._tail.lengths.max())
        held = self._tail.keys[:, :, :longest], self._tail.values[:, :, :longest]
        keys, values = (part.contiguous() for part in self._projection.expanded(*held))
        return TailSegments(keys, values, self._tail.lengths)

    def nbytes(self) -> int:
        """Bytes of tensors beyond prefixes and tail: the copied sinks; matrices are the model's own."""
        return self.kernels.nbytes() if isinstance(self.kernels, NativePlan) else 0
