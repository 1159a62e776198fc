"""The queries of a text in a few numbers, merged a block of tokens at a time."""

from __future__ import annotations

from torch import Tensor

from winnow.errors import MethodError
from winnow.score.blocks import numbers_at_once
from winnow.view import LayerView, QueryMoments, Rotation, last_queries

_BLOCK = 1 << 20
"""Numbers per query head, token and dimension to hold at once on a CPU (4 MiB in fp32): they should stay near it."""


def moments_of(view: LayerView, first: int, scatter: bool, sizes: bool, owner: str) -> QueryMoments:
    """Moments of all queries of the text from token `first` on, those that carry on from before among them.

    scatter, sizes: the parts that are wanted besides the mean. owner: who asks, for the error.

    Raises:
        MethodError: a view without its rotation.
    """
    if view.rotation is None:
        raise no_rotation(owner, view.layer)
    counted = view.moments or _nothing(view, scatter, sizes)
    new = view.tokens - first - counted.number
    queries = last_queries(view.queries, new)
    heads, _, dim = queries.shape
    step = max(1, numbers_at_once(queries.device, _BLOCK) // (heads * dim))
    for start in range(0, new, step):
        counted = _merged(counted, queries[:, start : start + step], view.rotation, first + counted.number)
    return counted


def no_rotation(owner: str, layer: int) -> MethodError:
    """The error for a view without its rotation."""
    return MethodError(f"{owner} needs the rotation of layer {layer}: give LayerView.rotation, as caches do.")


def _nothing(view: LayerView, scatter: bool, sizes: bool) -> QueryMoments:
    """Moments of no queries."""
    assert view.rotation is not None
    heads, _, dim = view.queries.shape
    mean = view.queries.new_zeros((heads, dim), dtype=view.queries.float().dtype)
    return QueryMoments(
        0,
        mean,
        mean.new_zeros((heads, dim, dim)) if scatter else None,
        view.rotation.pair_sizes(mean) if sizes else None,
    )


def _merged(before: QueryMoments, queries: Tensor, rotation: Rotation, first: int) -> QueryMoments:
    """Moments with those of more queries [Hq, n, D], at positions from `first` on.

    Blocks are merged by their own means (Chan et al. 1979): one pass, and nothing cancels where queries are far from
    zero and close together.
    """
    block = rotation.inverse(queries, first)
    new, own = block.shape[1], block.mean(dim=1)
    count, apart = before.number + new, own - before.mean
    scatter, sizes = before.scatter, before.sizes
    if scatter is not None:
        block = block - own[:, None]
        between = apart[:, :, None] * apart[:, None] * (before.number * new / count)
        scatter = scatter + block.transpose(1, 2) @ block + between
    if sizes is not None:
        sizes = sizes + (rotation.pair_sizes(queries).mean(dim=1) - sizes) * (new / count)
    return QueryMoments(count, before.mean + apart * (new / count), scatter, sizes)
