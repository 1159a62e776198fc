"""Pieces of scores on a GPU by the Triton kernels: a window's attention, and what values add to the output.

Both are there in numbers of a token, never as a matrix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from winnow.kernels.gpu import support
from winnow.view import LayerView, last_queries

if TYPE_CHECKING:
    from winnow.kernels.gpu.scoring import Normalized


def serves(view: LayerView) -> bool:
    """True for a view whose attention Triton sums up."""
    return support.serves(view.keys)


def normalized(view: LayerView, rows: int, visible: int | None = None) -> Normalized:
    """The last `rows` queries, which see the first `visible` keys; None: all up to their own. They are to be served."""
    # Imported where it serves: Triton takes a second, and there may be none.
    from winnow.kernels.gpu.scoring import Asked, Normalized

    queries = last_queries(view.queries, rows)
    visible = view.keys.shape[1] if visible is None else visible
    return Normalized(Asked(queries, view.keys, view.scaling, view.softcap, view.sinks, view.absent, visible))


def output_sizes(values: Tensor, matrices: Tensor, squared: bool) -> Tensor:
    """fp32 [Hq, n]: Σ |W_h v| over the outputs, or Σ (W_h v)², of values [H, n, Dv] and matrices [Hq, Dv, E]."""
    from winnow.kernels.gpu import projecting

    return projecting.output_sizes(values, matrices, squared)
