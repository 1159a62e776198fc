"""One layer's rows on their way to prefixes: what the scorer sees of them, their slots, the packed result."""

from __future__ import annotations

from copy import deepcopy
from typing import Any
from weakref import ref

from torch import Tensor, nn

from winnow.cache.arriving import RowParts
from winnow.cache.compression import Compression
from winnow.cache.fold import allocated_length, candidates
from winnow.cache.prefix import Continued, Prefix, next_prefix
from winnow.cache.projection import output_projection
from winnow.cache.rotary import rotation_of
from winnow.doubts import doubted
from winnow.errors import CacheError, ModelError
from winnow.kernels.interface import AttentionSpec
from winnow.store.channels import all_finite
from winnow.view import Extra, LayerView, Rotation, last_queries


class LayerCompressor:
    """Compresses rows of one layer by the method that its cache's layers share."""

    def __init__(self, compression: Compression, index: int) -> None:
        """index: of the layer among the compressed ones, from 0."""
        self.compression = compression
        self.index = index
        self.spec: AttentionSpec | None = None
        self.attention: ref[nn.Module] | None = None  # the module that computes queries, keys and values

    def compress(self, row: int, parts: RowParts) -> Prefix | None:
        """The first prefix of a row, from its prompt; none for a row of nothing but padding.

        None, too, where slots are known with the last layer, which then has those of all: they are put into the places
        that earlier layers left for them.
        """
        if parts.keys.shape[1] == 0 or self.spec is None:
            return None
        if self.compression.spans_layers:
            return self._together(row, self._view(row, parts, self.spec), parts.keys.shape[1])
        return self._next(row, self._view(row, parts, self.spec), parts.keys.shape[1], None)

    def fold(self, row: int, old: Prefix | None, tail: tuple[Tensor, Tensor], queries: Tensor) -> Prefix | None:
        """The next prefix of a row: the best of its prefix and its tail, keys [H, T, D] and values [H, T, Dv].

        queries: [Hq, n, D] of the row's last tokens.
        """
        if self.spec is None:
            return old
        method = self.compression.method
        # Nobody scores what all stays, and the store copies what is packed.
        recovers = not method.full or method.store.reads_written or self.compression.observer is not None
        held = candidates(old, *tail, method.scorer.window, recovers)
        view = self._view(row, RowParts(queries, held.keys, held.values), self.spec, held.positions)
        absent = held.positions < 0
        view = view._replace(
            absent=absent if bool(absent.any()) else None,
            positions=held.positions.expand(len(view.keys), -1),  # heads that share a latent hold the same
            carried=held.carried,
            moments=None if old is None else old.moments,
        )
        prompt, seen = 0 if old is None else old.prompt, int(held.positions[0, -1]) + 1
        # Where turns are folded as prompts are compressed, a share is one of the whole conversation.
        length = allocated_length(method, prompt, seen) if self.compression.fold_turns is None else seen
        return self._next(row, view, length, None if old is None else Continued(old, held.slots))

    def module(self) -> Any:
        """The module that computes queries, keys and values. Raises CacheError where the model is gone."""
        return _alive(self.attention)

    def _together(self, row: int, view: LayerView, length: int) -> Prefix | None:
        """The prefix of the last layer of a row; of others there is none yet."""
        shared = self.compression
        plan = shared.allocation(row, self.index, length, RowParts(view.queries, view.keys, view.values)).plan
        asked = view._replace(queries=last_queries(view.queries, shared.method.queries_needed(length)))
        ranking = shared.rank(shared.method.scorer, asked)
        shared.together.add(row, shared.method, asked, ranking, plan, view if shared.observer else None)
        if self.index + 1 < len(shared.heads):
            return None
        finished = shared.together.finish(row, shared.method, plan)
        for seen, prefix in finished:
            if shared.observer is not None and seen is not None:
                shared.observer.see(seen, prefix)
        shared.together.deliver(row, [prefix for _, prefix in finished])
        return finished[-1].prefix

    def _next(self, row: int, view: LayerView, length: int, old: Continued | None) -> Prefix:
        """The prefix that follows `old`, with slots as for a row of `length` tokens."""
        shared = self.compression
        parts = RowParts(view.queries, view.stored.keys, view.stored.values)
        allocation = shared.allocation(row, self.index, length, parts)
        asked = view._replace(queries=last_queries(view.queries, shared.method.queries_needed(view.keys.shape[1])))
        prefix = next_prefix(shared.method, asked, allocation, old, shared.rank, shared.carries)
        shared.spending.add(row, self.index, sum(prefix.bytes().values()))
        if view.coverage is not None:
            shared.coverage.add(row, view, prefix)
        if shared.observer is not None:
            shared.observer.see(view, prefix)
        return prefix

    def _view(self, row: int, parts: RowParts, spec: AttentionSpec, positions: Tensor | None = None) -> LayerView:
        """One sequence as scorer and observer see it, with what the scorer asks for besides keys and queries.

        positions: [H, N], which token every column is, -1 where absent; None: column t is token t.
        """
        asked = self.compression.method.scorer.extras
        view = LayerView(
            layer=self.index,
            layers=len(self.compression.heads),
            queries=last_queries(
                parts.queries, self.compression.queries_needed(parts.keys.shape[1], summed=parts.paid is not None)
            ),
            keys=parts.keys,
            values=parts.values,
            scaling=spec.scaling,
            softcap=spec.softcap,
            sinks=spec.sinks,
            coverage=self._coverage(row, parts, positions) if Extra.COVERAGE in asked else None,
            rotation=self._rotation() if Extra.ROTATION in asked else None,
            output_projection=self._output_projection(parts) if Extra.OUTPUT_PROJECTION in asked else None,
            paid=parts.paid,
            replayed=self.compression.replayed_scores(row, self.index) if Extra.REPLAY in asked else None,
        )
        self._check_finite({"keys": view.keys, "values": view.values, "queries": view.queries})
        return view

    def _check_finite(self, named: dict[str, Tensor]) -> None:
        """Raises ModelError, now or later, where a number is not finite."""
        for name, tensor in named.items():
            if tensor.numel():
                error = ModelError(
                    f"The {name} of layer {self._name()} hold NaN or infinite numbers, so tokens cannot be scored. "
                    "Check the prompt without compression; a model in float16 may need bfloat16 or float32."
                )
                doubted(~all_finite(tensor), error)

    def _name(self) -> str:
        """The number of the layer in its model, as far as that is known."""
        module = self.attention() if self.attention is not None else None
        return str(getattr(module, "layer_idx", self.index))

    def _coverage(self, row: int, parts: RowParts, positions: Tensor | None) -> Tensor:
        """[N], or [H, N] for columns at `positions`; anything where they are absent."""
        length = parts.keys.shape[1] if positions is None else int(positions[0, -1]) + 1
        counts = self.compression.coverage.before(row, self.index, length, parts.keys.device)
        return counts if positions is None else counts[positions.clamp(min=0)]

    def _rotation(self) -> Rotation:
        return rotation_of(_alive(self.compression.model), _alive(self.attention))

    def _output_projection(self, parts: RowParts) -> Tensor:
        return output_projection(_alive(self.attention), parts.queries.shape[0], parts.values.shape[-1])

    def __deepcopy__(self, memo: dict[int, Any]) -> LayerCompressor:
        # The sinks in `spec` are the model's own parameters.
        twin = type(self)(deepcopy(self.compression, memo), self.index)
        twin.spec, twin.attention = self.spec, self.attention
        return twin


def _alive(module: ref[Any] | None) -> Any:
    """The model, or the module of one, that a cache refers to."""
    found = module() if module is not None else None
    if found is None:
        raise CacheError("the model of this cache was deleted; keep it until the prompt is compressed.")
    return found
