"""One layer of the cache of a model whose heads share one latent per token (multi-head latent attention).

Stored are latents, as keys of a single head, and rotated keys, as its values: what transformers caches. Heads are there
only while tokens are chosen; see `HeadUnion` for how they agree on one set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedConfig

from winnow.allocate import HeadUnion, PlannedAllocator, layers_allocator, spanning_of
from winnow.cache.arriving import RowParts
from winnow.cache.compressor import LayerCompressor
from winnow.cache.handle import Attended, Phase, handle_of
from winnow.cache.latent import UNCACHED, Projection, expanded, is_latent
from winnow.cache.latent_plan import LatentPlan
from winnow.cache.layer import CompressedLayer
from winnow.cache.prefix import Prefix
from winnow.cache.tail import Tail
from winnow.composition.method import Method
from winnow.errors import CacheError, MethodError, ModelError
from winnow.kernels.interface import AttentionPlan, AttentionSpec
from winnow.models.carrier import carried_on
from winnow.models.replacing import is_watched
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
        if isinstance(self._plan, LatentPlan) and not self._plan.is_current():
            self._plan = self._step = None
        latents, rotated = super().update(key_states, value_states, *args, **kwargs)
        handle = handle_of(latents)
        assert handle is not None
        self._arrived = latents, rotated
        handle.is_expanded = handle.values is not None
        handle.is_unseen = handle.phase is Phase.TAIL and not self._watches_expansion()
        return carried_on(latents, handle), rotated

    def give_up(self) -> None:
        """As in other layers."""
        super().give_up()
        self._arrived = None

    def finish_prompt(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid: Tensor | None, paid: Tensor | None
    ) -> None:
        """As in other layers, of the latents that keys [R, Hq, N, D] and values [R, Hq, N, Dv] were made of."""
        assert isinstance(self.compressor, LatentCompressor)
        # Compressed now, these are what scorers see; later, they are gone.
        self.compressor.made = lambda row: self.arriving.row(row, keys, values)
        try:
            super().finish_prompt(queries, *self._stored(keys, values), valid, paid)
        finally:
            self.compressor.made = None

    def append(self, queries: Tensor, keys: Tensor, values: Tensor, valid: Tensor | None) -> Attended:
        """As in other layers, of the latents that keys [R, Hq, Q, D] and values [R, Hq, Q, Dv] were made of."""
        return super().append(queries, *self._stored(keys, values), valid)

    def _watches_expansion(self) -> bool:
        """True if somebody sees what the model makes of the latents of new tokens."""
        attention = self.compressor.attention and self.compressor.attention()
        expansion = getattr(attention, "kv_b_proj", None)
        return expansion is None or is_watched(expansion)

    def _stored(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """The latents and rotated keys that keys and values were made of."""
        if self._arrived is None:
            raise CacheError("no tokens arrived at this layer; run them through the model.")
        return self._arrived

    def _end_pass(self) -> None:
        super()._end_pass()
        self._arrived = None

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


class LatentCompressor(LayerCompressor):
    """Shows scorers the keys and values that heads make of latents, and stores the latents."""

    made: Callable[[int], RowParts] | None = None
    """Those of a row's prompt, as long as the model has them."""

    def _view(self, row: int, parts: RowParts, spec: AttentionSpec, positions: Tensor | None = None) -> LayerView:
        if self.made is None:
            keys, values = (each[0] for each in expanded(self.module(), parts.keys[None], parts.values[None]))
        else:
            _, keys, values, _ = self.made(row)
        tokens = None if positions is None else positions.expand(len(keys), -1)
        view = super()._view(row, RowParts(parts.queries, keys, values, parts.paid), spec, tokens)
        return view._replace(latents=Latents(parts.keys, parts.values))
