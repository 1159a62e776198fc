"""State that all layers of one cache share: the method, the shape of the model, what was spent and covered so far."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any
from weakref import WeakSet, ref

from torch import Tensor, nn
from transformers import PreTrainedModel

from winnow.allocate import Allocation, spanning_of
from winnow.budget import readable_bytes
from winnow.cache.arriving import RowParts
from winnow.cache.coverage import Coverage
from winnow.cache.fold import check_foldable, queries_to_remember
from winnow.cache.listening import Listening, Replayed
from winnow.cache.observer import Observer
from winnow.cache.overlap import Overlap
from winnow.cache.prefix import Prefix
from winnow.cache.progress import Progress
from winnow.cache.recent_queries import columns_of
from winnow.cache.spanning import LayersTogether
from winnow.cache.state_calls import StateCalls
from winnow.composition.byte_budget import Spending
from winnow.composition.method import Method, Rank, own_ranking
from winnow.errors import BudgetError, CacheError, MethodError
from winnow.store import Cost, LayerShape, Store

CARRIED_BYTES = 4
"""Bytes of a number that a slot carries on, in fp32."""
LENGTH_BYTES = 8
"""Bytes of a row's length in the tail."""
NEEDS_REPLAY = (
    "has the model read the whole prompt a second time before anything is compressed: use winnow.compress(model, "
    "input_ids, method, tokenizer=tokenizer) or winnow.generate, which do so."
)
"""Behind a method's name."""


@dataclass
class Compression:
    """Settings and running counts of one cache's compression."""

    method: Method
    heads: list[int]
    """KV heads of every compressed layer."""
    model: ref[PreTrainedModel]
    """Whose layers these are; a cache neither copies its model nor keeps it alive."""
    prompt_length: int | None = None
    """Tokens of the prompt (padding included) where it arrives in several chunks; None: one chunk."""
    seconds: float = 0.0
    """Time spent on scoring, selecting and packing so far."""
    coverage: Coverage = field(default_factory=Coverage)
    spending: Spending = field(default_factory=Spending)
    together: LayersTogether = field(default_factory=LayersTogether)
    """Layers that wait for the last one, where the allocator spans them."""
    fold_every: int | None = None
    """After how many tokens the tail of a row is folded into its prefix; None: it grows."""
    fold_turns: int | None = None
    """Tokens of a row that stay dense at most when a turn was attended to; None: all."""
    defer: bool = False
    """Leave prompts dense, until `choose` says who compresses them."""
    waiting_queries: int | None = None
    """Last queries of a row that wait with such a prompt; None: all."""
    observer: Observer | None = None
    rank: Rank = own_ranking
    listening: Listening | None = None
    """Set while a waiting prompt is read again: layers then keep nothing."""
    on_trial: bool = False
    """True while tokens come of which the last may be wrong; see `Trial`."""
    state_calls: StateCalls | None = None
    """Those of the latest pass on trial, where it was a replay that has them; see `Trial`."""
    replayed: Replayed | None = None
    """Findings of that, for the method."""
    progress: Progress = field(default_factory=Progress)
    overlap: Overlap = field(default_factory=Overlap)
    _chunk: int = 0
    """Tokens that came last while the prompt was not complete."""
    _warned: bool = False
    attentions: WeakSet[nn.Module] = field(default_factory=WeakSet)
    """Attention modules of the model, which may go on in another one when that is gone: a part of it, a wrapper."""
    _modules: frozenset[int] = frozenset()
    """Ids of all modules of the model, once they were asked for."""

    @property
    def spans_layers(self) -> bool:
        """True if the slots of a layer are known when all layers are."""
        return spanning_of(self.method.allocator) is not None

    @property
    def folds(self) -> bool:
        """True if later tokens are folded into what is compressed."""
        return self.fold_every is not None or self.fold_turns is not None

    @property
    def turns_from(self) -> int | None:
        """Dense tokens from which on a row is folded where several came at a time; None: never.

        Where they come one by one it is `fold_every`.
        """
        if self.fold_turns is None:
            return self.fold_every
        return min(self.fold_turns + 1, self.fold_every or self.fold_turns + 1)

    @property
    def carries(self) -> bool:
        """True if slots keep what they scored, for the next time that their row is compressed."""
        return self.folds and self.method.scorer.accumulates

    @property
    def folding(self) -> tuple[int | None, int | None, Method] | None:
        """The way in which tails are folded; None: they grow."""
        return (self.fold_every, self.fold_turns, self.method) if self.folds else None

    def choose(
        self,
        method: Method,
        rank: Rank,
        fold_every: int | None,
        length: int,
        queries: int,
        replayed: Replayed | None = None,
    ) -> None:
        """Another method, before anything is compressed. Raises MethodError where it cannot serve the model or fold.

        fold_every: None leaves what is set. length: tokens of the prompt. queries: how many of the last ones wait with
        it. replayed: findings of its replay. Raises CacheError where too few queries wait, or the method's replay is
        missing.
        """
        if method.scorer.replayer != (replayed.replayer if replayed else None):
            raise CacheError(f"{method} {NEEDS_REPLAY}")
        self.fold_every = self.fold_every if fold_every is None else fold_every
        needed = max(method.queries_needed(length), self.queries_of_folds(method))
        if self.defer and queries < min(needed, length):
            raise CacheError(
                f"{method.name} looks at the last {min(needed, length)} queries of the prompt, but the cache kept only "
                f"{queries}; make it with a larger waiting_queries, or without."
            )
        if self.folds:
            check_foldable(method, self.fold_every, self.fold_turns)
        self.method = self._for_model(method)
        self.rank, self.defer = rank, False
        self.prompt_length = length
        self.replayed = replayed
        self.seconds = replayed.seconds if replayed else 0.0

    def replayed_scores(self, row: int, layer: int) -> Tensor:
        """[H, N] what a replay found. Raises CacheError where the prompt was not read again."""
        if self.replayed is None:
            raise CacheError(f"{self.method} {NEEDS_REPLAY}")
        return self.replayed.scores[row][layer]

    def forget_prompt(self) -> None:
        """The prompt is compressed: what was found of it alone is of no more use."""
        self.rank, self.replayed = own_ranking, None

    def _for_model(self, method: Method) -> Method:
        model = self.model()
        return method.for_model("" if model is None else model.config.name_or_path, tuple(self.heads))

    def owns(self, module: nn.Module) -> bool:
        """True if a module is part of the model, or was, as an attention module of one that is gone."""
        model = self.model()
        if model is None:
            return module in self.attentions
        if id(module) not in self._modules:
            self._modules = frozenset(map(id, model.modules()))
        return id(module) in self._modules

    def foreign(self) -> CacheError:
        """The error for an attention module that is not the model's."""
        gone = self.model() is None and not self.attentions
        whose = "a model that is gone" if gone else "another model (of the same shape, or a copy)"
        return CacheError(
            f"this cache is of {whose}, whose keys and values it holds; make a CompressedCache for the model that you "
            "call, or load the context with that model."
        )

    def notice(self, seen: int, new: int) -> None:
        """A part of a prompt comes, `new` tokens after `seen`; warns, once, if that looks like decoding."""
        if new == 1 and self._chunk > 1 and not self._warned:
            self._warned = True
            warnings.warn(
                f"this cache was made with prompt_length={self.prompt_length}, but after {seen} tokens they arrive one "
                f"by one, and nothing is compressed before there are {self.prompt_length}. Pass the number of tokens "
                "that the prompt really has (padding included), or leave prompt_length out if it arrives in one piece.",
                UserWarning,
                stacklevel=2,
            )
        self._chunk = new

    def check_no_part(self, tokens: int) -> None:
        """Raises CacheError as what comes looks like a part of the prompt: as many tokens as were compressed just now.

        A cache that was told where the prompt ends knows better, and one that folds compresses every part.
        """
        if self.prompt_length is not None or self.folds:
            return
        raise CacheError(
            f"{tokens} tokens were compressed as a prompt, and {tokens} more arrive before anything was generated. "
            "They look like chunks of one prompt (prefill_chunk_size), of which all but the first would stay dense. "
            "Make the cache with prompt_length=input_ids.shape[1] to compress the whole prompt (winnow.compress(..., "
            "chunk_size=) does so), or with fold_turns=R to compress every chunk. If the prompt is complete, and its "
            f"question happens to be as long, pass prompt_length={tokens}."
        )

    def reset(self) -> None:
        """Nothing is compressed, and nothing came yet."""
        self.together = LayersTogether()
        self.seconds, self._chunk, self._warned = 0.0, 0, False
        self.progress.reset()

    def queries_needed(self, length: int, summed: bool = False) -> int:
        """Last queries of a row of `length` tokens that method and observer look at, or that wait for a method.

        summed: what all queries paid is known without them.
        """
        if self.defer:
            return length if self.waiting_queries is None else min(self.waiting_queries, length)
        shown = 0 if self.observer is None else self.observer.queries
        if summed:
            asked = max(self.method.queries_besides_sums(length), self.queries_to_remember())
        else:
            asked = self.method.queries_needed(length)
        return min(max(asked, shown), length)

    def queries_to_remember(self) -> int:
        """Last queries of a row that a fold needs; none where nothing is folded."""
        return self.queries_of_folds(self.method)

    def queries_of_folds(self, method: Method) -> int:
        """The same for another method."""
        return queries_to_remember(method, self.fold_every or 0) if self.folds else 0

    def check_heads(self, index: int, heads: int) -> None:
        """Compares the KV heads that layer `index` really has with what the configuration promised.

        Raises CacheError where they differ in some layers only, MethodError where a method has head scores of others.
        """
        if self.heads[index] == heads:
            return
        if index == 0 and len(set(self.heads)) == 1:
            # Some configurations do not name their KV heads; the first layer tells.
            self.heads = [heads] * len(self.heads)
            self.method = self._for_model(self.method)
            return
        raise CacheError(
            f"compressed layer {index} has {heads} KV heads where {self.heads[index]} were expected from the model's "
            "configuration; pass heads_per_layer=[...] to CompressedCache."
        )

    def shape(self, layer: int, keys: Tensor, values: Tensor, length: int) -> LayerShape:
        """The shape that bytes of layer `layer` depend on, from its keys [..., D] and values [..., Dv].

        length: tokens of the row.
        """
        sizes = keys.shape[-1], values.shape[-1], keys.element_size()
        window = min(self.method.scorer.window, length)
        # Only where it is asked for: shapes of their own for every length would have costs of their own.
        short = length if length < self.method.store.residual else None
        return LayerShape(layer, self.heads[layer], *sizes, window, short)

    def allocation(self, row: int, layer: int, length: int, parts: RowParts) -> Allocation:
        """Slots of all layers for a row of `length` tokens, and the bytes that are left for this layer's prefix of it.

        Shapes of queries, keys and values from `parts`. Raises BudgetError where a budget in bytes cannot hold what is
        always kept, and what is dense until it is folded.
        """
        first, heads = self.shape(0, parts.keys, parts.values, length), tuple(self.heads)
        dense_of = {each: self.dense_bytes(first._replace(heads=each), parts.queries) for each in set(heads)}
        dense = [dense_of[each] for each in heads]
        upkeep = CARRIED_BYTES if self.carries and self.method.scorer.carries_slots else 0
        costs = _costs(self.method.store, first, heads)
        full = tuple(Cost(cost.fixed + extra, cost.slot + upkeep) for cost, extra in zip(costs, dense, strict=True))
        try:
            allocation = self.method.allocation(length, heads, full)
        except BudgetError as error:
            if not any(dense):
                raise
            raise BudgetError(
                f"{error} {readable_bytes(sum(dense))} of it are for tokens that are dense until they are folded, and "
                "for queries that folding needs; a smaller fold_every needs less."
            ) from None
        if allocation.bytes is not None:
            prefixes = tuple(share - extra for share, extra in zip(allocation.bytes, dense, strict=True))
            allocation = allocation._replace(bytes=prefixes, upkeep=upkeep)
        return self.spending.rest(row, layer, allocation)

    def dense_bytes(self, shape: LayerShape, queries: Tensor) -> int:
        """Bytes of a row's layer that folding needs besides its prefix: full tail buffers, and the queries it asks for.

        queries: [Hq, n, D], for their shape. 0 where nothing is folded; without `fold_every` tails have no limit.
        """
        if not self.folds:
            return 0
        heads, _, dim = queries.shape
        ring = columns_of(self.queries_to_remember()) * heads * dim * queries.element_size()
        ring += self.method.scorer.moments_bytes(heads, dim) if self.carries else 0
        tokens = self.fold_every or 0
        return ring + LENGTH_BYTES + tokens * shape.heads * (shape.key_dim + shape.value_dim) * shape.itemsize

    def expect(self, layer: int, prefixes: list[Prefix | None]) -> None:
        """A layer was compressed for all rows; its prefixes come into this list where the last layer brings them."""
        if self.spans_layers:
            self.together.expect(layer, prefixes, layer + 1 == len(self.heads))

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Within, a layer is compressed; if that fails, nothing was counted, so that it can be tried again."""
        coverage, spending = copy(self.coverage), copy(self.spending)
        try:
            yield
        except BaseException:
            self.coverage, self.spending = coverage, spending
            raise

    def __deepcopy__(self, memo: dict[int, Any]) -> Compression:
        # Forks go on counting by themselves; all else is immutable, or the same for them.
        return replace(
            self,
            coverage=deepcopy(self.coverage, memo),
            spending=deepcopy(self.spending, memo),
            together=deepcopy(self.together, memo),
            progress=deepcopy(self.progress, memo),
            overlap=Overlap(),
        )


def check_one_reading(method: Method) -> None:
    """Raises MethodError for a method that has a prompt read twice before it is compressed."""
    if method.scorer.replayer is not None:
        raise MethodError(f"{method} {NEEDS_REPLAY}")


@lru_cache(maxsize=128)
def _costs(store: Store, first: LayerShape, heads: tuple[int, ...]) -> tuple[Cost, ...]:
    """Costs of all layers, shaped as the first one but for their heads.

    Every layer of every row asks for them, at the prompt and at folds, hence the cache.
    """
    return tuple(store.cost(first._replace(layer=layer, heads=each)) for layer, each in enumerate(heads))
