"""The worth of a context's tokens to the tokens that come after it, in the order in which a scorer keeps them."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.score import Scorer
from winnow.score.output_norms import output_norms
from winnow.score.window import attention_blocks
from winnow.view import LayerView, last_queries


def oracle_importance(view: LayerView, future: int) -> Tensor:
    """I [H, N]: the largest contribution of a token to a head's output over all that comes after it.

    I_j = max over the last `future` queries, and over the query heads of the group, of ‖A_j·v_j·W_O‖₂. The view is that
    of context and future together, N tokens being the context. Raises MethodError for a view without its output
    projection.
    """
    length = view.keys.shape[1] - future
    heads = view.keys.shape[0]
    strongest = view.keys.new_zeros((heads, view.queries.shape[0] // heads, length), dtype=torch.float32)
    for block in attention_blocks(view, future):
        strongest = torch.maximum(strongest, block.attention[..., :length].amax(dim=2))
    return (strongest * output_norms(view, slice(length))).amax(dim=1)


def context_of(view: LayerView, future: int, scorer: Scorer) -> LayerView:
    """The view of the context alone, as it would have been compressed before anything came after it."""
    length = view.keys.shape[1] - future
    queries = view.queries[:, : view.queries.shape[1] - future]
    return view._replace(
        keys=view.keys[:, :length],
        values=view.values[:, :length],
        queries=last_queries(queries, scorer.queries_needed(length)),
        paid=None,  # by what came after it, too
    )


def gains(view: LayerView, future: int, scorer: Scorer) -> Tensor:
    """[H, N]: importance of the token that a head would keep first, second, …; +inf for those that it always keeps."""
    importance = oracle_importance(view, future)
    scores = scorer.rank(context_of(view, future, scorer)).scores
    order = scores.sort(dim=1, descending=True, stable=True)
    return importance.gather(1, order.indices).masked_fill(order.values == torch.inf, torch.inf)
