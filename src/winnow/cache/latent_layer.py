"""One layer of the cache of a model whose heads share one latent per token (multi-head latent attention).

Stored are latents, as keys of a single head, and rotated keys, as its values: what transformers caches. Heads are there
only while tokens are chosen; see `HeadUnion` for how they agree on one set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from winnow.allocate import HeadUnion, PlannedAllocator, layers_allocator, spanning_of
from winnow.cache.arriving import RowParts
from winnow.cache.compressor import LayerCompressor
from winnow.cache.handle import Attended, carried_on, handle_of
from winnow.cache.latent import UNCACHED, Projection, expanded, is_latent
from winnow.cache.layer import CompressedLayer
from winnow.cache.prefix import Prefix
from winnow.cache.tail import Tail
from winnow.composition.method import Method
from winnow.errors import CacheError, MethodError, ModelError
from winnow.kernels.formats import Block, DenseBlock
from winnow.kernels.interface import AttentionPlan, AttentionSpec, DecodePlan, TailSegments
from winnow.kernels.latent import LatentAttention
from winnow.store import AllChannels, Packed
from winnow.view import Extra, Latents, LayerView


def check_sharing(config: PreTrainedConfig, method: Method, folds: bool) -> None:
    """Raises MethodError for a method that treats heads otherwise than a model with this configuration does.

    folds: later tokens are folded into what is compressed.
    """
    if is_latent(config):
        _check_parts(method)
        _check_scorer(method, folds)
    elif isinstance(method.allocator, HeadUnion):
        raise MethodError(
            f"{method} makes heads share one set of tokens, but every head of this model has its own keys and values; "
            "leave union out."
        )


def _check_parts(method: Method) -> None:
    if isinstance(layers_allocator(method.allocator), PlannedAllocator):
        raise MethodError(
            f"{method} gives every head its own number of slots, but the heads of this model share one latent per "
            "token: use a method without head scores and curves (snapkv, adakv, aperturekv)."
        )
    if spanning_of(method.allocator) is not None:
        raise MethodError(
            f"{method} divides slots among layers after the last layer, which is not supported for heads that share "
            "latents; use uniform, pyramid, ada or raba."
        )
    store = method.store
    if isinstance(store, Packed) and not isinstance(store.channels, AllChannels):
        raise MethodError(
            f"{method} prunes channels of keys, but this model caches latents, from which every head computes keys and "
            "values; use bits."
        )
    if isinstance(store, Packed) and store.precision.by_head:
        raise MethodError(f"{method} gives every head its own bits, but heads share latents; use bits(8) or bits(4).")


def _check_scorer(method: Method, folds: bool) -> None:
    if Extra.ROTATION in method.scorer.extras:
        raise MethodError(
            f"{method} undoes the rotation of queries, but this model rotates only a part of them; use another scorer."
        )
    if Extra.REPLAY in method.scorer.extras:
        raise MethodError(
            f"{method} reads the prompt a second time, which is not supported for heads that share latents; use "
            "another scorer."
        )
    if folds and method.scorer.accumulates:
        raise MethodError(
            f"{method} sums up attention for every head, which is not kept if heads share latents; leave fold_every "
            "and fold_turns out, or use a method whose last queries vote (snapkv, adakv, tova)."
        )


class LatentLayer(CompressedLayer):
    """Latents of one layer, for transformers' cache interface."""

    splits_passes = False  # prompts come expanded, later tokens as latents

    def _forget(self) -> None:
        super()._forget()
        self._arrived: tuple[Tensor, Tensor] | None = None  # what `update` gave, until it was attended to
        self._projection: Projection | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """As in other layers, from latents [R, 1, N, C] and rotated keys [R, 1, N, Dr].

        Raises ModelError for what is neither, as releases give it that expand latents before they cache them.
        """
        if key_states.shape[1] != 1:
            raise ModelError(UNCACHED)
        super().lazy_initialization(key_states, value_states)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Counts the new tokens' latents [R, 1, N, C] and rotated keys [R, 1, N, Dr], and hands them on.

        The note for the attention function goes on to the keys that the model makes of the latents.
        """
        latents, rotated = super().update(key_states, value_states, *args, **kwargs)
        handle = handle_of(latents)
        assert handle is not None
        self._arrived = latents, rotated
        return carried_on(latents, handle), rotated

    def finish(self) -> None:
        """As in other layers."""
        super().finish()
        self._arrived = None

    def give_up(self) -> None:
        """As in other layers."""
        super().give_up()
        self._arrived = None

    def finish_prompt(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid: Tensor | None, paid: Tensor | None
    ) -> None:
        """As in other layers, of the latents that keys [R, Hq, N, D] and values [R, Hq, N, Dv] were made of."""
        super().finish_prompt(queries, *self._latents(), valid, paid)

    def append(self, queries: Tensor, keys: Tensor, values: Tensor, valid: Tensor | None) -> Attended:
        """As in other layers, of the latents that keys [R, Hq, Q, D] and values [R, Hq, Q, Dv] were made of."""
        return super().append(queries, *self._latents(), valid)

    def _latents(self) -> tuple[Tensor, Tensor]:
        if self._arrived is None:
            raise CacheError("no tokens arrived at this layer; run them through the model.")
        return self._arrived

    def _made_compressor(self) -> LayerCompressor:
        return LatentCompressor(self.compression, self.index)

    def _planned(self, prefixes: Sequence[Prefix | None], dense: Tail, spec: AttentionSpec) -> AttentionPlan:
        if self._projection is None:
            attention = self.compressor.module()
            latents, rotated = dense.keys.shape[-1], dense.values.shape[-1]
            self._projection = Projection(attention, attention.num_heads, latents, rotated)
        return LatentPlan(prefixes, dense, spec, self._projection)

    def __deepcopy__(self, memo: dict[int, Any]) -> LatentLayer:
        # The tokens on their way are those of this layer's forward pass; the projection is the same.
        memo[id(self._arrived)], memo[id(self._projection)] = None, self._projection
        twin = super().__deepcopy__(memo)
        assert isinstance(twin, LatentLayer)
        twin._arrived, twin._projection = None, self._projection
        return twin


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
        self._attention = LatentAttention(self._blocks, self._tail, spec)

    def run(self, query: Tensor) -> Tensor:
        """query [R, Hq, Q, D] -> output [R, Q, Hq, Dv]; the tail already holds the Q new tokens."""
        with torch.no_grad():
            if query.shape[2] >= self._projection.tokens_to_expand_for:
                return DecodePlan(self._expanded_blocks(), self._expanded_tail(), self.spec).run(query)
            sums = self._attention.run(*self._projection.absorbed(query))
            return self._projection.output(sums.to(query.dtype)).contiguous()

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
        """Bytes of tensors beyond prefixes and tail: none, as matrices are the model's own."""
        return 0


class LatentCompressor(LayerCompressor):
    """Shows scorers the keys and values that heads make of latents, and stores the latents."""

    def _view(self, row: int, parts: RowParts, spec: AttentionSpec, positions: Tensor | None = None) -> LayerView:
        keys, values = expanded(self.module(), parts.keys[None], parts.values[None])
        tokens = None if positions is None else positions.expand(keys.shape[1], -1)
        view = super()._view(row, RowParts(parts.queries, keys[0], values[0], parts.paid), spec, tokens)
        return view._replace(latents=Latents(parts.keys, parts.values))
