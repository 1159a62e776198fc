"""One prefill, compressed as ever, with every layer measured while its queries, keys and values are at hand.

Nothing of a layer but numbers and kept positions outlives its measurement, so memory stays that of a compressed
prefill.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from winnow.allocate import Allocation
from winnow.cache import compress
from winnow.composition.method import Method
from winnow.diagnostics.attention import kept_attention
from winnow.diagnostics.kept import kept_mask, overlap, retained_diversity
from winnow.diagnostics.result import Diagnosis, LayerDiagnosis
from winnow.diagnostics.similarity import mean_cosine
from winnow.errors import CacheError
from winnow.kernels.formats.heads import heads_of_slots
from winnow.score import Refiner, Scorer
from winnow.score.diversity import diversified
from winnow.score.window import last_queries
from winnow.select import Selection
from winnow.store import Cost, Dense
from winnow.view import LayerView

DIVERSIFY = 0.45
"""λ for methods that do not diversify queries themselves: that of ApertureKV."""


def diagnose(
    model: PreTrainedModel, input_ids: Tensor, method: Method, *, window: int = 8, queries: int = 64
) -> Diagnosis:
    """Measures what `method` keeps of a prompt, in one prefill and in memory linear in the prompt.

    Args:
        model: a decoder-only model after `model.set_attn_implementation("winnow")`.
        input_ids: [1, N] or [N].
        window: last queries whose similarity is measured.
        queries: last queries whose attention is compared with what kept slots give; each costs a row of N per head.

    Raises:
        CacheError: several prompts or an empty one; no query to measure; an attention implementation that is not
            "winnow".
        ModelError: a model whose cache cannot be compressed.
    """
    prompt = _one_prompt(input_ids).to(model.device)
    _check_positive("window", window)
    _check_positive("queries", queries)
    strength = _strength(method.scorer)
    layers: list[LayerDiagnosis] = []

    def observe(view: LayerView, selection: Selection, packed: LayerView | None) -> None:
        layers.append(_measure(view, selection, packed, window, queries, strength))

    compress(model, prompt, _watched(method, max(window, queries), observe))
    return Diagnosis(method, prompt.shape[1], window, queries, strength, tuple(layers))


@dataclass(frozen=True)
class _ShownMore(Refiner):
    """Asks for more queries than the scores depend on, and for all else that `base` does."""

    base: Scorer = field(kw_only=True)
    queries: int = 0

    def queries_needed(self, length: int) -> int:
        return max(self.base.queries_needed(length), min(self.queries, length))


@dataclass(frozen=True)
class _Watched(Method):
    """Selects what `method` does, then shows `observe` the layer and the selection."""

    method: Method = field(kw_only=True)
    observe: Callable[[LayerView, Selection, LayerView | None], None] = field(kw_only=True, compare=False)

    def for_model(self, name: str, heads: tuple[int, ...]) -> Method:
        method = self.method.for_model(name, heads)
        return replace(self, method=method, store=method.store)

    def allocation(self, length: int, heads: tuple[int, ...], costs: tuple[Cost, ...]) -> Allocation:
        return self.method.allocation(length, heads, costs)

    @torch.no_grad()
    def select(self, view: LayerView, allocation: Allocation) -> Selection:
        needed = min(self.method.queries_needed(view.keys.shape[1]), view.queries.shape[1])
        selection = self.method.select(view._replace(queries=last_queries(view, needed)), allocation)
        self.observe(view, selection, None if isinstance(self.store, Dense) else self._packed(view, selection))
        return selection

    def _packed(self, view: LayerView, selection: Selection) -> LayerView:
        """The view with kept slots as they come back from their packed form."""
        block = self.store.pack(view, selection, min(self.scorer.window, view.keys.shape[1]))
        slots = torch.arange(len(selection.positions), device=view.keys.device)
        heads, positions = heads_of_slots(selection.offsets, slots), selection.positions
        keys, values = view.keys.to(torch.float32, copy=True), view.values.to(torch.float32, copy=True)
        keys[heads, positions], values[heads, positions] = block.recover(slots)
        return view._replace(keys=keys, values=values)


def _watched(
    method: Method, queries: int, observe: Callable[[LayerView, Selection, LayerView | None], None]
) -> _Watched:
    scorer = _ShownMore(base=method.scorer, queries=queries)
    return _Watched(method.name, scorer, method.allocator, method.store, method.budget, method=method, observe=observe)


def _measure(
    view: LayerView, selection: Selection, packed: LayerView | None, window: int, queries: int, strength: float
) -> LayerDiagnosis:
    mask = kept_mask(selection, view.keys.shape[1]).to(view.keys.device)
    watching = last_queries(view, min(window, view.queries.shape[1]))
    attention = kept_attention(view, mask, queries, packed)
    return LayerDiagnosis(
        kept=tuple(selection.positions.cpu().split(selection.offsets.diff().tolist())),
        rtd=retained_diversity(mask),
        iou=overlap(mask),
        cosine=mean_cosine(watching),
        diversified_cosine=mean_cosine(diversified(watching, strength)),
        mass=attention.mass,
        error=attention.error,
    )


def _strength(scorer: Scorer) -> float:
    """λ of the scorer's own query diversification, else ApertureKV's."""
    while isinstance(scorer, Refiner):
        scorer = scorer.base
    return getattr(scorer, "diversify", 0.0) or DIVERSIFY


def _one_prompt(input_ids: Tensor) -> Tensor:
    """[1, N]"""
    prompt = input_ids[None] if input_ids.dim() == 1 else input_ids
    if prompt.dim() != 2 or prompt.shape[0] != 1 or prompt.shape[1] == 0:
        raise CacheError(
            f"input_ids has shape {list(input_ids.shape)}; give one prompt, [N] or [1, N] with at least one token, and "
            "call diagnose once for each of several."
        )
    return prompt


def _check_positive(name: str, count: int) -> None:
    if count < 1:
        raise CacheError(f"{name} is {count}; give a positive number of queries.")
