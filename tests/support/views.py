"""Random layers for tests: what a scorer is shown, of any shape."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.allocate import Allocation, Allocator, SlotPlan
from winnow.cache.rotary import Unrotated
from winnow.score import Ranking, Scorer
from winnow.view import LayerView


def random_view(
    heads: int = 2,
    group: int = 2,
    length: int = 40,
    dim: int = 8,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    softcap: float | None = None,
    sinks: bool = False,
    layer: int = 0,
    layers: int = 4,
    sharpness: float = 2.0,
) -> LayerView:
    """A layer with the queries of the whole prompt, unrotated; attention is peaked enough to rank tokens."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return LayerView(
        layer=layer,
        layers=layers,
        queries=(sharpness * draw(heads * group, length, dim)).to(dtype),
        keys=draw(heads, length, dim).to(dtype),
        values=draw(heads, length, dim).to(dtype),
        scaling=dim**-0.5,
        softcap=softcap,
        sinks=draw(heads * group) if sinks else None,
        rotation=Unrotated(dim),
        output_projection=draw(heads * group, dim, 3 * dim).to(dtype),
    )


def shown_to(scorer: Scorer, view: LayerView) -> LayerView:
    """The view with only the queries that the scorer asks for."""
    length = view.keys.shape[1]
    needed = min(length, scorer.queries_needed(length))
    return view._replace(queries=view.queries[:, length - needed :])


def score(scorer: Scorer, view: LayerView) -> Tensor:
    """Scores [H, N] of a scorer that sees no more queries than it asks for."""
    return scorer(shown_to(scorer, view))


def refined(scorer: Scorer, scores: Tensor, slots: list[int], view: LayerView) -> Tensor:
    """The final order of a scorer whose second stage needs nothing but the scores."""
    return scorer.refine(Ranking(scores), torch.tensor(slots), view)


def one_layer(heads: int, length: int, total: int, guaranteed: int = 0) -> Allocation:
    """`total` slots for the only layer of a model."""
    return Allocation(SlotPlan(total, (heads,), length, guaranteed), (total,))


def head_slots(allocator: Allocator, scores: Tensor, total: int, guaranteed: int = 0) -> Tensor:
    """Slots per head of a model with one layer."""
    return allocator.head_slots(scores, one_layer(*scores.shape, total, guaranteed), 0)
